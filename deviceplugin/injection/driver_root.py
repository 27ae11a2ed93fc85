"""Finds the host's driver, and the files of it that belong in a container: libraries and programs.

NVIDIA's `containerDriverRoot` is a directory of this container. It contains either the host's driver root, or the whole
host file system with the driver in it: at the host's own root, where the GPU Operator's driver container installs it,
or where a cloud's operating system keeps it.

Libraries are also mounted under the names by which programs load them, so the loader finds them even without a hook
that updates its cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

FOLDERS: Final = (
    *("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"),
    *("lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"),
)
PROGRAMS: Final = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
)
SOCKET: Final = "/run/nvidia-persistenced/socket"
_CUDA: Final = re.compile(r"libcuda\.so\.([0-9]+\.[0-9]+(\.[0-9]+)?)")
NVML: Final = "libnvidia-ml.so.1"
HOST: Final = "/"
# The GPU Operator's driver container, and Container-Optimized OS.
KNOWN: Final = ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia")


def folders(root: Path) -> tuple[str, ...]:
    """Return the directory of the driver's libraries below `root`, as a host path; empty if there is no driver."""
    driver = _driver(root)
    return () if driver is None else (f"/{driver[0]}",)


def files(root: Path) -> tuple[str, ...]:
    """Return the driver files that a container gets, as sorted host paths."""
    driver = _driver(root)
    if driver is None:
        return ()
    folder, version = driver
    names = [f"/{folder}/{name}" for name in _libraries(root / folder, version)]
    programs = [f"/usr/bin/{name}" for name in PROGRAMS if (root / "usr/bin" / name).is_file()]
    socket = [SOCKET] if (root / SOCKET.lstrip("/")).is_socket() else []
    return tuple(sorted([*names, *programs, *socket]))


def _driver(root: Path) -> tuple[str, str] | None:
    """Return the first directory with libcuda, and the driver's version."""
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("libcuda.so.*")):
            match = _CUDA.fullmatch(path.name)
            if match:
                return folder, match[1]
    return None


def _libraries(folder: Path, version: str) -> Iterator[str]:
    for path in folder.iterdir():
        name = path.name
        # `libcuda.so.1` points to `libcuda.so.VERSION`, on some systems through another link.
        if name.endswith(f".so.{version}") or (
            ".so" in name and path.is_symlink() and path.resolve().name.endswith(f".so.{version}")
        ):
            yield name


@dataclasses.dataclass(frozen=True, slots=True)
class DriverRoot:
    """A directory tree with the driver's files: its path in this container, and its path on the host."""

    path: Path
    host: str


def find(mounted: Path, named: str = HOST) -> DriverRoot | None:
    """Return the driver root at or below `mounted`; None if there is no driver.

    named: `nvidiaDriverRoot`. If it is the host's own root and has no driver, the KNOWN roots are tried too.
    """
    below = [DriverRoot(mounted / root.lstrip("/"), root) for root in (KNOWN if named == HOST else (named,))]
    for candidate in (DriverRoot(mounted, named), *below):
        if folders(candidate.path):
            return candidate
    return None


def load_nvml(mounted: Path, named: str = HOST) -> Path | None:
    """Load NVML from the library path, or else from the driver root; return the path in the latter case.

    A later load by name gets this library, because the loader knows it by its soname.
    """
    with contextlib.suppress(OSError):
        ctypes.CDLL(NVML)
        return None
    root = find(mounted, named)
    if root is None:
        return None
    path = root.path / folders(root.path)[0].lstrip("/") / NVML
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        logger.warning("Could not load the host's driver library", extra={"path": str(path), "err": str(error)})
        return None
    logger.info("Loaded the host's driver library", extra={"path": str(path)})
    return path
