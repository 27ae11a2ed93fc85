"""Plans how a GPU gets the MIG devices that the ledger has placed on it. Pure.

The record says which places the agent has cut, or is about to: it is written before a device is created, so a crash in
between leaves no device that looks like another program's. Only devices of the record are ever destroyed: once neither
the ledger nor a living pod has them, no process uses them, and their room is needed or the GPU is to become whole. A
GPUNode that was deleted comes back without its allocations, so the ledger alone is not enough. MIG mode changes only
while nothing uses the GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from deviceplugin.hardware.partitioner import Create, CreatePart, Destroy, DestroyPart, Present, SetMode, Step
from deviceplugin.state.node_state import GpuInstance
from gpushare import contract, errors, mig_shares, pod
from gpushare.allocation import Allocation, GivenShare, Isolation, MigInstance
from gpushare.gpunode import Gpu, GpuNode
from gpushare.pod import PodJson


@dataclasses.dataclass(frozen=True, slots=True)
class CutDevice:
    """A place that the agent has cut, or is about to. uuid: of the MIG device; empty until it exists."""

    profile: str
    start: int
    uuid: str = ""

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"

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


def held(pods: Iterable[PodJson], uuid: str) -> frozenset[str]:
    """Return the MIG devices that living pods have on a GPU by their annotations, such as `1g.10gb@4`."""
    living = (pod.annotations_of(manifest) for manifest in pods if not pod.is_terminal(manifest))
    on_gpu = (annotations for annotations in living if annotations.get(contract.GPU_UUIDS) == uuid)
    return frozenset(annotations[contract.MIG_DEVICE] for annotations in on_gpu if contract.MIG_DEVICE in annotations)


def make_plan(
    present: Present,
    wanted: Sequence[MigInstance],
    record: tuple[CutDevice, ...] | None,
    *,
    may_merge: bool,
    held: Collection[str] = (),
) -> CutPlan:
    """Plan the next steps; plan again after them.

    may_merge: the GPU may become whole now if it has no device left. held: devices of living pods, which stay even if
    they are not wanted.
    """
    mode, ours = present.mode, record or ()
    if mode is not None and not mode.current and mode.pending and record is not None:
        return CutPlan((SetMode(enabled=False),), ())  # an agent ended before it took this back
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
    kept_for_pods = [made for cut, made in mine.items() if made in unwanted and str(cut) in held]
    idle = [made for made in unwanted if made not in kept_for_pods and not any(part.busy for part in made.parts)]
    removed = idle if missing or may_merge else []
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
            whose = "of a running pod that the GPUNode does not show" if in_the_way in kept_for_pods else whose
            waits = f"the MIG device {in_the_way.kind.profile}@{in_the_way.start} {whose} is in its place"
        elif (kind := kinds.get(device.profile)) is None:
            waits = f"the driver reports no profile {device.profile}"
        else:
            steps.append(Create(kind, device.start, (kind.gpu_slices,)))
            kept.append(CutDevice(device.profile, device.start))
    if steps or wanted or not may_merge:
        return CutPlan(tuple(steps), tuple(kept), waits)
    if kept_for_pods:
        return CutPlan((), tuple(kept), "the MIG device of a running pod that the GPUNode does not show is on it")
    if present.instances:
        return CutPlan((), tuple(kept), "a process of an ended pod, or another program's MIG device, is still on it")
    if present.busy:
        return CutPlan((), (), "a process still uses the GPU")
    return CutPlan((SetMode(enabled=False),), ())


def proven(present: Present, record: tuple[CutDevice, ...]) -> tuple[CutDevice, ...]:
    """Return the record with the UUIDs of the devices that read back complete; without one that does not exist yet."""
    return tuple(
        dataclasses.replace(cut, uuid=next((uuid for made in present.instances if (uuid := _uuid(cut, made))), ""))
        for cut in record
    )


def as_devices(node: GpuNode, record: Record) -> GpuNode:
    """Return the node as its processes see it: each MIG device is a whole GPU that belongs to one share.

    The device enforces the limits, so the share may use all of its memory and compute. Shares whose device does not
    exist yet are omitted, because none of their containers runs.
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


def as_gpus(gpu: Gpu, record: Record) -> tuple[Gpu, ...]:
    """Return the MIG devices of the record, also those of ended pods, as GPUs; the GPU itself if there are none."""
    made = (
        as_gpu(gpu, cut.uuid, device) for cut in record.get(gpu.uuid, ()) if cut.uuid for device in [_read(gpu, cut)]
    )
    return tuple(made) or (gpu,)


def as_gpu(gpu: Gpu, uuid: str, device: MigInstance) -> Gpu:
    """Return a MIG device as a GPU."""
    model = f"{gpu.model} MIG {device.profile}"
    return dataclasses.replace(gpu, uuid=uuid, model=model, memory_bytes=device.memory_bytes, mig_geometry=())


def _shares(node: GpuNode) -> Iterable[tuple[Allocation, GivenShare]]:
    for entry in node.allocations:
        if entry.labels.isolation is Isolation.MIG and not entry.is_backfill_reservation:
            yield from ((entry, share) for share in entry.shares)


def _read(gpu: Gpu, cut: CutDevice) -> MigInstance:
    try:
        return mig_shares.read_device(gpu, str(cut))
    except errors.LedgerError:  # a GPU that has lost its MIG mode reports no profiles
        return MigInstance(cut.profile, cut.start, 0, 0, gpu.memory_bytes)


def _uuid(cut: CutDevice, made: GpuInstance) -> str:
    """Return the UUID of the device at that place if it has all slices of its instance, else ""."""
    whole = (part.uuid for part in made.parts if part.slices == made.kind.gpu_slices)
    return next(whole, "") if cut.is_place_of(made) else ""
