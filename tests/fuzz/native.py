"""The C targets, built by clang with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from lab import prerequisites
from tests.fuzz import table

ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}
_PROGRAM = "#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *d, size_t n) { return d == NULL && n; }\n"


@functools.cache
def missing() -> str:
    """Return why no C fuzzer is available; empty if one is. Root installs it."""
    if os.geteuid() == 0 and shutil.which("apt-get") and not _links():
        prerequisites.ensure_programs("clang")
        output = subprocess.run(["clang", "--version"], check=True, capture_output=True, text=True).stdout
        if (major := re.search(r"version (\d+)", output)) and not _links():
            prerequisites.ensure_packages(f"libclang-rt-{major[1]}-dev")
    return (
        ""
        if _links()
        else "clang with libFuzzer is missing: apt-get install clang, and libclang-rt-…-dev of its version"
    )


@functools.cache
def built(name: str) -> Path:
    """Build and return the program of a target; with `.kept` after the name, one that only replays inputs."""
    if not name.endswith(".kept") and (why := missing()):
        raise RuntimeError(why)
    folder = table.ROOT / "build" / "fuzz" / "native" / platform.machine()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # targets share objects
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", Path(__file__).parent / "c", name], check=True, timeout=280)
    return folder / name


def _links() -> bool:
    if shutil.which("clang") is None:
        return False
    whole = ["clang", "-fsanitize=fuzzer,address", "-x", "c", "-o", "/dev/null", "-"]
    return subprocess.run(whole, input=_PROGRAM.encode(), capture_output=True, check=False).returncode == 0
