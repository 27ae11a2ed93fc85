"""How the GPUs are connected, according to the driver.

Connections that it does not report (an old driver, a GPU in MIG mode, a lost GPU) are left out without an error: GPUs
without known connections are treated alike.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import itertools
import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import Final

import pynvml

from deviceplugin.hardware.nvml_call import kernel_address, try_ask

# The driver's topology levels in the words of `allocation.aligned.WEIGHTS`.
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
    """The path between two GPUs: the closest component that both are attached to, and the NVLink links between them."""

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
    """Return the paths between these GPUs, by pair of UUIDs, as far as the driver reports them."""
    handles = {gpu: handle for gpu in gpus if (handle := try_ask(pynvml.nvmlDeviceGetHandleByUUID, gpu)) is not None}
    infos = ((gpu, try_ask(pynvml.nvmlDeviceGetPciInfo, handle)) for gpu, handle in handles.items())
    buses = {kernel_address(str(info.busId)): gpu for gpu, info in infos if info is not None}
    linked: collections.Counter[frozenset[str]] = collections.Counter()
    for gpu, handle in handles.items():
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            active = try_ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
            if active is None:
                break  # no more links
            remote = try_ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link) if active else None
            other = buses.get(kernel_address(str(remote.busId))) if remote is not None else None
            if other is not None:  # a GPU, and no switch
                linked[frozenset((gpu, other))] += 1
    between = {}
    for gpu, other in itertools.combinations(handles, 2):
        level = try_ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[gpu], handles[other])
        if level in _LEVELS:
            # Each link was counted at both ends.
            between[gpu, other] = NvmlPath(_LEVELS[level], -(-linked[frozenset((gpu, other))] // 2))
    return between


def clique(gpu: str) -> str:
    """Return the multi-node NVLink fabric of a GPU as `CLUSTER.CLIQUE`; empty if it is in none."""
    fabric = FabricInfo()
    handle = try_ask(pynvml.nvmlDeviceGetHandleByUUID, gpu)
    # pynvml passes the pointer through, and the driver writes to it.
    if handle is None or try_ask(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(fabric)) is None:
        return ""
    cluster = bytes(fabric.cluster_uuid)
    is_attached = fabric.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and fabric.status == pynvml.NVML_SUCCESS
    return f"{uuids.UUID(bytes=cluster)}.{fabric.clique_id}" if is_attached and any(cluster) else ""
