"""A GPU in the status of a GPUNode, to and from JSON.

Releases before 0.4 know neither lent memory nor owners, and must not give away a GPU that has either. So `memory`
excludes what is lent, which `lent` adds again, and a GPU with an owner is exclusive in its JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from gpushare import contract, json_fields
from gpushare.allocation import ONLY_ARBITER, Isolation
from gpushare.gpunode import Gpu, MemoryEnforcement, Mode
from gpushare.mig import profile
from gpushare.mig.instance_layout import ProfileGeometry

Json = Mapping[str, Any]

MAX_SLICES: Final = 64  # memory slices of a GPU; today's have at most 8


def read(entry: Json, cordoned: Collection[str]) -> Gpu:
    """Read an entry of `status.gpus`. cordoned: UUIDs, from the spec."""
    uuid = json_fields.text(entry["uuid"], "uuid")
    major, _, minor = str(entry.get("computeCapability") or "0.0").partition(".")
    numa, linked = entry.get("numaNode"), entry.get("linkGroup")
    return Gpu(
        uuid=uuid,
        index=json_fields.whole(entry.get("index", 0), "index", most=4096),
        model=str(entry.get("model", "")),
        memory_bytes=json_fields.whole(entry["memory"], "memory") + json_fields.whole(entry.get("lent", 0), "lent"),
        compute_capability=(int(major), int(minor or 0)),
        numa_node=None if numa is None else json_fields.whole(numa, "numaNode", most=4096),
        link_group=None if linked is None else json_fields.whole(linked, "linkGroup", most=4096),
        pci_bus_id=str(entry.get("pciBusID", "")),
        mode=Mode.FRACTIONAL if entry.get("owner") else Mode(entry.get("mode", Mode.FRACTIONAL)),
        pending_mode=Mode(entry["pendingMode"]) if entry.get("pendingMode") else None,
        mig_profiles=tuple(json_fields.text(name, "migDevices") for name in entry.get("migDevices") or ()),
        isolations=tuple(kind for kind in Isolation if kind in entry.get("isolations", ONLY_ARBITER)),
        sm_partitions=json_fields.whole(entry.get("smPartitions", 0), "smPartitions", most=contract.MAX_SM_PARTITIONS),
        mig_geometry=tuple(map(_read_mig_profile, entry.get("migProfiles") or ())),
        memory_enforcement=MemoryEnforcement(entry.get("memoryEnforcement", MemoryEnforcement.LIBRARY)),
        healthy=entry.get("healthy", True) is True,
        health_reason=str(entry.get("healthReason", "")),
        cordoned=uuid in cordoned or bool(entry.get("pendingMode")),
        owner=str(entry.get("owner") or ""),
    )


def write(gpu: Gpu, lent_bytes: int) -> dict[str, Any]:
    """Return the entry of `status.gpus`. lent_bytes: of its memory."""
    lent_bytes = min(lent_bytes, gpu.memory_bytes)
    entry = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memory": gpu.memory_bytes - lent_bytes,
        "computeCapability": "{}.{}".format(*gpu.compute_capability),
        "pciBusID": gpu.pci_bus_id,
        "mode": Mode.EXCLUSIVE.value if gpu.owner else gpu.mode.value,
        "healthy": gpu.healthy,
    } | json_fields.present(
        lent=lent_bytes or None,
        pendingMode=gpu.pending_mode and gpu.pending_mode.value,
        migDevices=list(gpu.mig_profiles),
        smPartitions=gpu.sm_partitions or None,
        memoryEnforcement=json_fields.unless(gpu.memory_enforcement, MemoryEnforcement.LIBRARY),
        numaNode=gpu.numa_node,
        linkGroup=gpu.link_group,
        healthReason=gpu.health_reason,
        owner=gpu.owner,
    )
    if gpu.isolations != ONLY_ARBITER:
        entry["isolations"] = [*gpu.isolations]
    if gpu.mig_geometry:
        entry["migProfiles"] = [
            {
                "name": str(kind.profile),
                "memory": kind.memory_bytes,
                "slices": kind.memory_slices,
                "starts": list(kind.starts),
                "count": kind.most,
            }
            for kind in gpu.mig_geometry
        ]
    return entry


def _read_mig_profile(entry: Json) -> ProfileGeometry:
    slices = json_fields.whole(entry["slices"], "slices", most=MAX_SLICES)
    starts = tuple(json_fields.whole(start, "starts", most=MAX_SLICES) for start in entry["starts"])
    count = json_fields.whole(entry["count"], "count", most=MAX_SLICES)
    memory_bytes = json_fields.whole(entry["memory"], "memory")
    name = profile.parse(json_fields.text(entry["name"], "profile"))
    return ProfileGeometry(name, 0, slices, starts, count, memory_bytes)
