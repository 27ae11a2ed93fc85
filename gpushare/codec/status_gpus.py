"""The entries of status.gpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpushare.codec.entry_fields import text, whole
from gpushare.gpu import Gpu, Mode

Json = Mapping[str, Any]


def read(entry: Json, cordoned: frozenset[str]) -> Gpu:
    """Return the GPU of an entry; `cordoned`: UUIDs of the GPUs that an administrator has cordoned.

    Raises CodecError, KeyError, TypeError or ValueError if it is invalid.
    """
    uuid = text(entry["uuid"], "uuid")
    major, _, minor = str(entry.get("computeCapability") or "0.0").partition(".")
    numa, linked = entry.get("numaNode"), entry.get("linkGroup")
    return Gpu(
        uuid=uuid,
        index=whole(entry.get("index", 0), "index", most=4096),
        model=str(entry.get("model", "")),
        memory_bytes=whole(entry["memory"], "memory"),
        compute_capability=(int(major), int(minor or 0)),
        numa_node=None if numa is None else whole(numa, "numaNode", most=4096),
        link_group=None if linked is None else whole(linked, "linkGroup", most=4096),
        pci_bus_id=str(entry.get("pciBusID", "")),
        mode=Mode(entry.get("mode", Mode.FRACTIONAL)),
        pending_mode=Mode(entry["pendingMode"]) if entry.get("pendingMode") else None,
        mig_profiles=tuple(text(name, "migDevices") for name in entry.get("migDevices") or ()),
        healthy=entry.get("healthy", True) is True,
        health_reason=str(entry.get("healthReason", "")),
        cordoned=uuid in cordoned or bool(entry.get("pendingMode")),
    )


def write(gpu: Gpu) -> dict[str, Any]:
    """Return the GPU as an entry of `status.gpus`."""
    entry: dict[str, Any] = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memory": gpu.memory_bytes,
        "computeCapability": "{}.{}".format(*gpu.compute_capability),
        "pciBusID": gpu.pci_bus_id,
        "mode": gpu.mode.value,
        "healthy": gpu.healthy,
    }
    if gpu.pending_mode is not None:
        entry["pendingMode"] = gpu.pending_mode.value
    if gpu.mig_profiles:
        entry["migDevices"] = list(gpu.mig_profiles)
    if gpu.numa_node is not None:
        entry["numaNode"] = gpu.numa_node
    if gpu.link_group is not None:
        entry["linkGroup"] = gpu.link_group
    if gpu.health_reason:
        entry["healthReason"] = gpu.health_reason
    return entry
