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
from pathlib import Path
from typing import Final

from deviceplugin.cdi import driver_files

logger = logging.getLogger(__name__)

NVML: Final = "libnvidia-ml.so.1"
HOST: Final = "/"
# The GPU Operator's driver container; Container-Optimized OS.
KNOWN: Final = ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia")


@dataclasses.dataclass(frozen=True, slots=True)
class DriverRoot:
    """A driver root: as this process sees it, and by its name on the host."""

    seen: Path
    host: str


def find(mounted: Path, named: str = HOST) -> DriverRoot | None:
    """The driver root at `mounted`, or below it; None where there is no driver.

    named: `nvidiaDriverRoot`; where that is the host's own root and has no driver, those that are KNOWN count too.
    """
    below = [DriverRoot(mounted / root.lstrip("/"), root) for root in (KNOWN if named == HOST else (named,))]
    for candidate in (DriverRoot(mounted, named), *below):
        if driver_files.folders(candidate.seen):
            return candidate
    return None


def load(mounted: Path, named: str = HOST) -> Path | None:
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
    path = root.seen / driver_files.folders(root.seen)[0].lstrip("/") / NVML
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        logger.warning("Could not load the host's driver library", extra={"path": str(path), "err": str(error)})
        return None
    logger.info("Loaded the host's driver library", extra={"path": str(path)})
    return path
