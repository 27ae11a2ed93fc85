"""Plans how a GPU gets the MIG devices that the ledger has placed on it. Pure.

The record says which places the agent has cut, or is about to: it is written before a device is created, so a crash in
between leaves no device that looks like another program's. Only devices of the record are ever destroyed: once the
ledger no longer has them, no process uses them, and their room is needed or the GPU is to become whole. MIG mode
changes only while nothing uses the GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from deviceplugin.hardware.partitioner import Create, CreatePart, Destroy, DestroyPart, Present, SetMode, Step
from deviceplugin.state.node_state import GpuInstance
from gpushare.allocation import Allocation, GivenShare, Isolation, MigInstance
from gpushare.gpunode import Gpu, GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class CutDevice:
    """A place that the agent has cut, or is about to. uuid: of the MIG device; empty until it exists."""

    profile: str
    start: int
    uuid: str = ""

    def is_place_of(self, made: GpuInstance) -> bool:
        """Whether this instance is at that place."""
        return (self.profile, self.start) == (str(made.kind.profile), made.start)


Record = Mapping[str, tuple[CutDevice, ...]]  # by UUID of the GPU; a GPU without devices may still be in MIG mode


@dataclasses.dataclass(frozen=True, slots=True)
class CutPlan:
    """The next steps on a GPU, and the places to have in the record before them. waits: why more must wait, or ""."""

    steps: tuple[Step, ...] = ()
    record: tuple[CutDevice, ...] | None = None  # None: no record of the GPU is needed any more
    waits: str = ""


def wanted(node: GpuNode, uuid: str) -> tuple[MigInstance, ...]:
    """Return the MIG devices that the ledger has placed on a GPU."""
    return tuple(share.mig for _, share in _shares(node) if share.mig is not None and share.gpu_uuids == (uuid,))


def has_others(node: GpuNode, uuid: str) -> bool:
    """Whether the ledger has a share of another kind on the GPU."""
    entries = (entry for entry in node.allocations if not entry.is_backfill_reservation)
    return any(entry.labels.isolation is not Isolation.MIG and uuid in entry.gpu_uuids for entry in entries)


def make_plan(
    present: Present, wanted: Sequence[MigInstance], record: tuple[CutDevice, ...] | None, *, may_merge: bool
) -> CutPlan:
    """Plan the next steps; plan again after them. may_merge: the GPU may become whole now if it has no device left."""
    mode, ours = present.mode, record or ()
    if mode is None or not mode.current:
        if not wanted:
            return CutPlan()
        if mode is None:
            return CutPlan(record=record, waits="it does not support MIG")
        if present.busy:
            return CutPlan(record=record, waits="a process still uses the whole GPU")
        return CutPlan((SetMode(enabled=True),), ())
    mine = {cut: made for cut in ours for made in present.instances if cut.is_place_of(made)}
    places = {(device.profile, device.start): device for device in wanted}
    missing = [places[place] for place in places.keys() - {(cut.profile, cut.start) for cut in mine}]
    unwanted = [made for cut, made in mine.items() if (cut.profile, cut.start) not in places]
    removed = [made for made in unwanted if not any(part.busy for part in made.parts)] if missing or may_merge else []
    steps: list[Step] = []
    for made in removed:
        steps += [*(DestroyPart(made.id, part.id) for part in made.parts), Destroy(made.id)]
    # An agent that ended in between may have left an instance without its compute instance.
    whole = [made for made in mine.values() if made not in unwanted]
    steps += [CreatePart(made.id, made.kind.gpu_slices) for made in whole if not made.parts]
    kept, waits = list(mine), ""
    kinds = {str(kind.profile): kind for kind in (present.geometry.kinds if present.geometry is not None else ())}
    for device in sorted(missing, key=lambda device: -device.memory_slices):
        rest = (made for made in present.instances if made not in removed)
        in_the_way = next((made for made in rest if not set(made.placed.places).isdisjoint(device.places)), None)
        if in_the_way is not None:
            whose = "that an ended pod still uses" if in_the_way in unwanted else "of another program"
            waits = f"the MIG device {in_the_way.kind.profile}@{in_the_way.start} {whose} is in its place"
        elif (kind := kinds.get(device.profile)) is None:
            waits = f"the driver reports no profile {device.profile}"
        else:
            steps.append(Create(kind, device.start, (kind.gpu_slices,)))
            kept.append(CutDevice(device.profile, device.start))
    if not steps and not wanted and not present.instances and may_merge:
        return CutPlan((SetMode(enabled=False),), ())
    if may_merge and not wanted and not steps:
        waits = "a process of an ended pod, or another program's MIG device, is still on it"
    return CutPlan(tuple(steps), tuple(kept), waits)


def proven(present: Present, record: tuple[CutDevice, ...]) -> tuple[CutDevice, ...]:
    """Return the record with the UUIDs of the devices that read back complete; without one that does not exist yet."""
    return tuple(
        dataclasses.replace(cut, uuid=next((uuid for made in present.instances if (uuid := _uuid(cut, made))), ""))
        for cut in record
    )


def as_devices(node: GpuNode, record: Record) -> GpuNode:
    """Return the node as its processes see it: each MIG device is a GPU of its own, which one share has whole.

    The device keeps the limits, so the share may have all of its memory and compute. Shares whose device does not exist
    yet are left out: no container of theirs runs.
    """
    devices = {(uuid, cut.profile, cut.start): cut.uuid for uuid, cuts in record.items() for cut in cuts if cut.uuid}
    if not any(share.mig for _, share in _shares(node)):
        return node
    gpus, made = node.gpu_by_uuid(), dict[str, Gpu]()
    entries: list[Allocation] = []
    for entry in node.allocations:
        (share, *others) = entry.shares or (None,)
        if share is None or others or share.mig is None:
            entries.append(entry)
            continue
        uuid, device = share.gpu_uuids[0], share.mig
        known = devices.get((uuid, device.profile, device.start))
        if known is None or uuid not in gpus:
            continue
        whole = dataclasses.replace(
            share,
            gpu_uuids=(known,),
            request_percent=100,
            limit_percent=100,
            memory_bytes=device.memory_bytes,
            shrink_to_bytes=None,
            mig=None,
        )
        entries.append(dataclasses.replace(entry, shares=(whole,)))
        made[known] = as_gpu(gpus[uuid], known, device)
    return dataclasses.replace(node, allocations=tuple(entries), gpus=(*node.gpus, *made.values()))


def as_gpu(gpu: Gpu, uuid: str, device: MigInstance) -> Gpu:
    """Return a MIG device as a GPU."""
    model = f"{gpu.model} MIG {device.profile}"
    return dataclasses.replace(gpu, uuid=uuid, model=model, memory_bytes=device.memory_bytes, mig_geometry=())


def _shares(node: GpuNode) -> Iterable[tuple[Allocation, GivenShare]]:
    for entry in node.allocations:
        if entry.labels.isolation is Isolation.MIG and not entry.is_backfill_reservation:
            yield from ((entry, share) for share in entry.shares)


def _place(made: MigInstance) -> CutDevice:
    return CutDevice(made.profile, made.start)


def _uuid(cut: CutDevice, made: GpuInstance) -> str:
    """Return the UUID of the device at that place if it has all slices of its instance, else ""."""
    whole = (part.uuid for part in made.parts if part.slices == made.kind.gpu_slices)
    return next(whole, "") if cut.is_place_of(made) else ""
