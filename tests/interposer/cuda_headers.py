"""Reads the exported functions of CUDA and NVML from NVIDIA's headers, which come in Python packages.

The headers are downloaded to the user's cache. Each package has a few megabytes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from lab import build

# The first and last version of each major version in use, and some between. To add one, add its package.
PACKAGES: Final = {
    "11.8": "nvidia-cuda-runtime-cu11==11.8.89",
    "12.0": "nvidia-cuda-runtime-cu12==12.0.146",
    "12.4": "nvidia-cuda-runtime-cu12==12.4.127",
    "12.9": "nvidia-cuda-runtime-cu12==12.9.79",
    "13.0": "nvidia-cuda-runtime==13.0.96",
    "13.2": "nvidia-cuda-runtime==13.2.86",
    "13.5": "nvidia-cuda-runtime==13.5.37",
}
NVML_PACKAGES: Final = {
    "11.8": "nvidia-nvml-dev-cu11==11.8.86",
    "12.0": "nvidia-nvml-dev-cu12==12.0.140",
    "12.9": "nvidia-nvml-dev-cu12==12.9.79",
    "13.0": "nvidia-nvml-dev==13.0.87",
    "13.5": "nvidia-nvml-dev==13.5.37",
}
DRIVER: Final = "cuda.h"
NVML: Final = "nvml.h"
# Read as text, because they include headers that are not available here.
BESIDES: Final = ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
TYPES: Final = "cudaTypedefs.h"
LARGEST_BYTES: Final = 10 << 20
DOWNLOAD_SECONDS: Final = 60
# cuda.h declares different functions for each of these macros.
FORMS: Final = ("", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM", "-D__CUDA_API_VERSION_INTERNAL")


class UnavailableError(Exception):
    """A package cannot be downloaded here."""


def directory(package: str) -> Path:
    """Return the directory with a package's headers, and download them if needed. Raises UnavailableError."""
    target = build.cache_directory() / "cuda-headers" / package
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unpacked = Path(scratch) / "headers"
        unpacked.mkdir()
        with zipfile.ZipFile(_wheel(package, Path(scratch))) as wheel:
            for name in wheel.namelist():
                if Path(name).name in {DRIVER, TYPES, NVML, *BESIDES}:
                    (unpacked / Path(name).name).write_bytes(wheel.read(name))
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # another process was faster
                raise
    return target


def _wheel(package: str, where: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64", "--retries=1"]
    try:
        subprocess.run(
            [*command, "--timeout=15", f"--dest={where}", package],
            check=True,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        lines = str(error.stderr or error).strip().splitlines()
        raise UnavailableError(
            f"{package} cannot be downloaded: {lines[-1] if lines else 'no reason given'}"
        ) from error
    (wheel,) = where.glob("*.whl")
    if wheel.stat().st_size > LARGEST_BYTES:
        raise UnavailableError(f"{package} has {wheel.stat().st_size} bytes; {LARGEST_BYTES} are expected at most")
    return wheel


def functions(version: str) -> frozenset[str]:
    """Return every function that a driver of this CUDA version exports, each variant by its full name."""
    where = directory(PACKAGES[version])
    names: set[str] = set()
    for form in FORMS:
        command = ["gcc", "-E", "-P", "-x", "c", *filter(None, [form]), str(where / DRIVER)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        names |= set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\([^{};]*\)\s*;", text))
    for name in BESIDES:
        text = re.sub(r"/\*.*?\*/", "", (where / name).read_text(errors="replace"), flags=re.DOTALL)
        names |= set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
        names |= set(re.findall(r"#define\s+cu\w+\s+(cu\w+_v\d+)\b", text))
    return frozenset(names)


def typed(version: str) -> frozenset[str]:
    """Return the functions for which the headers define a type, without suffixes: a second list for comparison."""
    text = (directory(PACKAGES[version]) / TYPES).read_text(errors="replace")
    return frozenset(re.findall(r"\bPFN_(cu[A-Z]\w*?)_v\d+(?:_ptsz|_ptds)?\)", text))


def forms(version: str) -> frozenset[str]:
    """Yield every variant of a function: its name, the version that introduced it, and `_ptsz` or `_ptds`."""
    text = (directory(PACKAGES[version]) / TYPES).read_text(errors="replace")
    return frozenset(re.findall(r"\bPFN_(cu[A-Z]\w*?_v\d+(?:_ptsz|_ptds)?)\)", text))


def nvml_functions(version: str) -> frozenset[str]:
    """Return every function that NVML exports in this CUDA version."""
    text = (directory(NVML_PACKAGES[version]) / NVML).read_text(errors="replace")
    return frozenset(re.findall(r"nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(", text))


def available(read: Callable[[str], frozenset[str]], version: str) -> frozenset[str]:
    """Return the functions; skip the test if the headers cannot be downloaded, except in continuous integration."""
    try:
        return read(version)
    except UnavailableError as error:
        if in_ci():
            raise
        pytest.skip(f"{error}: connect to a package index and run again, because hooks.def is not checked otherwise")


def in_ci() -> bool:
    """Whether this is continuous integration, where the packages must be available."""
    return bool(os.environ.get("CI"))
