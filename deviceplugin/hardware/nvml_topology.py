"""How GPUs are joined, as the driver says it: beside `nvml` and `nvml_mig`, a file that imports pynvml.

What the driver does not tell (an older one, a GPU in MIG mode, one that is lost) is left out, and is no error: GPUs of
which nothing is known are as good as any others.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import itertools
import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pynvml

from deviceplugin.hardware import nvml_call

# By the driver's level of what two GPUs have in common, the words of `allocation.aligned.WEIGHTS`.
_LEVELS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "SameBoard",
    pynvml.NVML_TOPOLOGY_SINGLE: "SingleSwitch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "MultiSwitch",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "HostBridge",
    pynvml.NVML_TOPOLOGY_NODE: "SameCPU",
    pynvml.NVML_TOPOLOGY_SYSTEM: "CrossCPU",
}


@dataclasses.dataclass(frozen=True, slots=True)
class NvmlPath:
    """Between two GPUs: the nearest thing that they have in common, and the links of NVLink from one to the other."""

    common: str
    nvlinks: int = 0


class FabricInfo(ctypes.Structure):
    """The nvmlGpuFabricInfo_t of nvml.h. In pynvml before 13.615 its cluster UUID has 80 bytes."""

    _fields_ = (
        ("cluster_uuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("clique_id", ctypes.c_uint32),
        ("state", ctypes.c_uint),
    )


Paths = Mapping[tuple[str, str], NvmlPath]


def paths(gpus: Sequence[str]) -> Paths:
    """The paths between these GPUs, by UUID, of each pair of which the driver tells one."""
    handles = {gpu: handle for gpu in gpus if (handle := _asked(pynvml.nvmlDeviceGetHandleByUUID, gpu)) is not None}
    buses = {_bus(handle): gpu for gpu, handle in handles.items()}
    linked: collections.Counter[frozenset[str]] = collections.Counter()
    for gpu, handle in handles.items():
        linked.update(frozenset((gpu, buses[bus])) for bus in _link_ends(handle) if bus in buses)
    between = {}
    for gpu, other in itertools.combinations(handles, 2):
        level = _asked(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[gpu], handles[other])
        if level in _LEVELS:
            # Each link was counted from both of its ends.
            between[gpu, other] = NvmlPath(_LEVELS[level], -(-linked[frozenset((gpu, other))] // 2))
    return between


def clique(gpu: str) -> str:
    """The NVLink fabric of several nodes that a GPU is in, `CLUSTER.CLIQUE`; empty where it is in none."""
    fabric = FabricInfo()
    handle = _asked(pynvml.nvmlDeviceGetHandleByUUID, gpu)
    # pynvml hands on what it is given, and the driver writes to where that points.
    if handle is None or _asked(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(fabric)) is None:
        return ""
    cluster = bytes(fabric.cluster_uuid)
    is_attached = fabric.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and fabric.status == pynvml.NVML_SUCCESS
    return f"{uuids.UUID(bytes=cluster)}.{fabric.clique_id}" if is_attached and any(cluster) else ""


def _link_ends(handle: Any) -> list[str]:
    """The PCI addresses at the other ends of a GPU's active links; a switch has none of a GPU."""
    addresses = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = _asked(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if active is None:
            break  # there are no more
        remote = _asked(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link) if active else None
        if remote is not None:
            addresses.append(nvml_call.kernel_address(str(remote.busId)))
    return addresses


def _bus(handle: Any) -> str:
    pci_info = _asked(pynvml.nvmlDeviceGetPciInfo, handle)
    return nvml_call.kernel_address(str(pci_info.busId)) if pci_info is not None else ""


def _asked(function: Any, *arguments: Any) -> Any:
    return nvml_call.ask(function, *arguments, default=None, allowed=None)
