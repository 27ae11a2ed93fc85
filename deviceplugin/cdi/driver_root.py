"""Where this process sees the driver of the host: for containers that no runtime gives one to.

NVIDIA's `containerDriverRoot` is a directory of this container with the host's driver root in it, or with all of the
host, whose driver is then below it: at its root, where the GPU Operator's driver container has it, or where the
operating system of a cloud does.
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
# The GPU Operator's driver container; Container-Optimized OS.
KNOWN: Final = ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia")


def folders(root: Path) -> tuple[str, ...]:
    """The folder with the driver's libraries below `root`, as a path on the host; none where there are none."""
    return tuple(f"/{libraries[0]}" for libraries in [_driver(root)] if libraries)


def files(root: Path) -> tuple[str, ...]:
    """All that a container gets of the driver below `root`, as paths on the host, sorted."""
    driver = _driver(root)
    if driver is None:
        return ()
    folder, version = driver
    names = [f"/{folder}/{name}" for name in _libraries(root / folder, version)]
    programs = [f"/usr/bin/{name}" for name in PROGRAMS if (root / "usr/bin" / name).is_file()]
    socket = [SOCKET] if (root / SOCKET.lstrip("/")).is_socket() else []
    return tuple(sorted([*names, *programs, *socket]))


def _driver(root: Path) -> tuple[str, str] | None:
    """The first folder that has libcuda, and its version."""
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("libcuda.so.*")):
            match = _CUDA.fullmatch(path.name)
            if match:
                return folder, match[1]
    return None


def _libraries(folder: Path, version: str) -> Iterator[str]:
    for path in folder.iterdir():
        name = path.name
        # `libcuda.so.1` leads to `libcuda.so.VERSION`, on some systems by way of another link.
        if name.endswith(f".so.{version}") or (
            ".so" in name and path.is_symlink() and path.resolve().name.endswith(f".so.{version}")
        ):
            yield name


@dataclasses.dataclass(frozen=True, slots=True)
class DriverRoot:
    """A driver root: as this process sees it, and by its name on the host."""

    path: Path
    host: str


def find(mounted: Path, named: str = HOST) -> DriverRoot | None:
    """The driver root at `mounted`, or below it; None where there is no driver.

    named: `nvidiaDriverRoot`; where that is the host's own root and has no driver, those that are KNOWN count too.
    """
    below = [DriverRoot(mounted / root.lstrip("/"), root) for root in (KNOWN if named == HOST else (named,))]
    for candidate in (DriverRoot(mounted, named), *below):
        if folders(candidate.path):
            return candidate
    return None


def load_nvml(mounted: Path, named: str = HOST) -> Path | None:
    """Have NVML in this process: the one on the library path, or else that of the driver root, which is returned.

    Who asks the loader for NVML by its name afterwards gets the one that is loaded: the loader knows it by its soname.
    Nothing is said where there is none: who asks for it does.
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
