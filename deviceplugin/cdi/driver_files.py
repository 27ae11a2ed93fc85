"""What of NVIDIA's driver belongs into a container: its libraries and programs, as they lie on the host.

Libraries are mounted under the names by which programs load them as well, so that they are found where the loader looks
anyway, be there a hook that renews its cache or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
