"""Builds libgpushare.so, which the agent mounts into containers, for each architecture."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path

from config.images import contents, requirements
from lab import lab_errors, prerequisites

BUILD = requirements.ROOT / "build" / "images"
COMPILERS = {
    machine: "gcc" if machine == platform.machine() else f"{machine}-linux-gnu-gcc"
    for machine in contents.MACHINES.values()
}


@functools.cache
def library(machine: str) -> Path:
    """Return the library's path; build it if it is missing or out of date.

    Raises:
        LabError: it could not be built.
    """
    target = BUILD / f"interposer-{machine}" / "libgpushare.so"
    compiler = prerequisites.program(COMPILERS[machine])
    command = [
        "make",
        "--silent",
        "-C",
        str(requirements.ROOT / "interposer"),
        f"BUILD={target.parent}",
        f"CC={compiler}",
        str(target),
    ]
    # Variables of an outer make must not affect this one.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    if subprocess.run(command, env=environment, check=False, stdout=2).returncode:
        raise lab_errors.LabError(f"building libgpushare.so for {machine} failed; see the compiler's messages above")
    return target
