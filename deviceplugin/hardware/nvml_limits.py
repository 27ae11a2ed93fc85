"""The driver's own memory limits: for a GPU and a cgroup, from driver 615 on.

They hold for all processes in the cgroup and below it, with or without the library. The version alone does not say
whether they work: the calls need root, the host's cgroup v2, a GPU outside MIG mode, and an nvidia-ml-py that has them.
So a GPU counts as able once it has accepted and returned the limits of a pod's cgroup.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import platform
from pathlib import Path
from typing import Any, Final

import pynvml

from deviceplugin.hardware.nvml_call import NvmlError, ask, function_named
from deviceplugin.host import cgroups
from gpushare import versions
from gpushare.gpunode import MemoryEnforcement

logger = logging.getLogger(__name__)

NO_LIMIT: Final = (1 << 64) - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX
_SET: Final = function_named("nvmlDeviceSetMemoryLimits_v1")
_GET: Final = function_named("nvmlDeviceGetMemoryLimits_v1")
# The errors that come from the driver, the GPU or the agent's rights, and do not pass by themselves.
_LASTING: Final = {
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the driver is older than 615, or nvidia-ml-py does not know the call",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "the GPU does not support it, or is in MIG mode",
    pynvml.NVML_ERROR_NO_PERMISSION: "the agent may not set limits: add the component driver-memory",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        "the driver cannot use the cgroup: it must be the host's cgroup v2, mounted writable (list driver-memory last)"
    ),
}
_NOT_FOUND: Final = (pynvml.NVML_ERROR_NOT_FOUND,)
_OF_ROOT: Final = (*_NOT_FOUND, pynvml.NVML_ERROR_OPERATING_SYSTEM, pynvml.NVML_ERROR_INVALID_ARGUMENT)


class _Limits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t of nvml.h; nvmlSetMemoryLimits_v1_t is its beginning."""

    _fields_ = [
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
        ("currentUsed", ctypes.c_ulonglong),
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryLimits:
    """A cgroup's limits and use of a GPU, in bytes. soft_bytes: reserved for it. hard_bytes: its maximum."""

    soft_bytes: int = 0
    hard_bytes: int = NO_LIMIT
    used_bytes: int = 0


def read(uuid: str, cgroup: Path) -> MemoryLimits:
    """Return the limits of a GPU for a cgroup, given by its directory. Raises NvmlError."""
    limits = _Limits(os.fsencode(cgroup), 0, NO_LIMIT)  # stays like this for a cgroup that was never limited
    ask(_GET, _handle(uuid), limits, about=f"{uuid}, {cgroup}", allowed=_NOT_FOUND)
    return MemoryLimits(int(limits.softLimit), int(limits.hardLimit), int(limits.currentUsed))


def write(uuid: str, cgroup: Path, *, hard_bytes: int, soft_bytes: int = 0) -> None:
    """Set the limits of a GPU for a cgroup. Raises NvmlError."""
    limits = _Limits(os.fsencode(cgroup), soft_bytes, hard_bytes)
    ask(_SET, _handle(uuid), limits, about=f"{uuid}, {cgroup}")


def _handle(uuid: str) -> Any:
    return ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)


class EnforcementProbe:
    """Finds out whether the driver keeps memory limits on a GPU. For the driver's thread.

    root: the host's cgroup v2. pod_uid: of the agent's own pod; empty if it runs outside a pod. kernel: its release.
    """

    def __init__(self, root: Path, pod_uid: str = "", kernel: str = platform.release()) -> None:
        self._root = root
        self._pod_uid = pod_uid
        self._kernel = kernel
        self._cgroup: Path | None = None
        self._proven: dict[str, bool] = {}
        self._reasons: dict[str, str] = {}  # why not, by UUID

    def __call__(self, uuid: str) -> MemoryEnforcement:
        """Return what enforces memory limits on the GPU now."""
        try:
            reason = self._problem(uuid)
        except NvmlError as error:
            lasting = _LASTING.get(error.code)
            is_pod_gone = self._cgroup is not None and not self._cgroup.exists()
            # A GPU that fails for a moment has not lost the ability.
            if (lasting is None or is_pod_gone) and self._proven.get(uuid):
                return MemoryEnforcement.DRIVER
            reason = f"{lasting}: {error}" if lasting is not None else str(error)
        self._proven[uuid] = not reason
        if self._reasons.get(uuid) != reason:
            self._reasons[uuid] = reason
            if reason:
                logger.info("The driver does not keep memory limits", extra={"gpu": uuid, "err": reason})
            else:
                logger.info("The driver keeps memory limits", extra={"gpu": uuid})
        return MemoryEnforcement.LIBRARY if reason else MemoryEnforcement.DRIVER

    def _problem(self, uuid: str) -> str:
        """Return why the driver keeps no limits, or "". Raises NvmlError."""
        ask(_GET, _handle(uuid), _Limits(os.fsencode(self._root)), about=uuid, allowed=_OF_ROOT)
        if versions.parse_version(self._kernel) < versions.MIN_KERNEL_DMEM:
            # An older kernel has no controller of device memory: nothing shows that limits include child cgroups.
            oldest = versions.format_version(versions.MIN_KERNEL_DMEM)
            return f"the kernel {self._kernel} is older than {oldest}"
        if not cgroups.is_v2(self._root):
            return f"{self._root} is not cgroup v2: set --cgroup-root to where it is mounted"
        if self._cgroup is None or not self._cgroup.exists():
            pods = cgroups.pods(self._root)
            # Another pod's limits may be changing, so an agent in a pod tries its own only.
            self._cgroup = pods.get(self._pod_uid) if self._pod_uid else next(iter(pods.values()), None)
        if self._cgroup is None:
            whose = "the cgroup of the agent's own pod is not" if self._pod_uid else "there is no pod's cgroup"
            missing = f"{whose} below {self._root}: mount the host's (component driver-memory)"
            return "" if self._proven.get(uuid) else missing
        known = read(uuid, self._cgroup)
        if not self._proven.get(uuid):
            # Writing what is there changes nothing, and shows that the agent may write.
            write(uuid, self._cgroup, hard_bytes=known.hard_bytes, soft_bytes=known.soft_bytes)
            again = read(uuid, self._cgroup)
            if (again.soft_bytes, again.hard_bytes) != (known.soft_bytes, known.hard_bytes):
                return f"limits of {self._cgroup} were set to {known} and read as {again}"
        return ""
