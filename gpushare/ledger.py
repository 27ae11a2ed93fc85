"""The rules of the ledger: GPU usage, and adding, confirming and releasing allocations. Values in, values out.

The invariant: on no GPU do the requests add up to more than 100 %, or the memory to more than the GPU has, all its
shares have one isolation, their MIG devices do not overlap, and each share has an SM partition if the GPU has any. Of
a pod's shares that are never in use together, such as those of an init container and the app, the larger counts. Memory
that the agent lends counts too: it writes that into the status of the same object. Every change is a function from a
GpuNode to a new one; the caller writes it with one compare-and-swap, or not at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from gpushare import allocation, errors, mig_shares, quantity
from gpushare.gpunode import Gpu, GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class GpuUse:
    """The compute and memory that allocations hold on one GPU. lent_bytes: part of the memory, beyond their own."""

    request_percent: int = 0
    memory_bytes: int = 0
    holders: tuple[allocation.Allocation, ...] = ()
    lent_bytes: int = 0

    @property
    def lent_clause(self) -> str:
        """The end of a sentence about free memory: how much is lent; empty if none is."""
        return f", {quantity.format_bytes(self.lent_bytes)} is lent to its pods" if self.lent_bytes else ""

    def plus(self, holder: allocation.Allocation, request_percent: int, memory_bytes: int) -> GpuUse:
        """Return the usage with one more holder of these amounts."""
        return GpuUse(
            self.request_percent + request_percent,
            self.memory_bytes + memory_bytes,
            (*self.holders, holder),
            self.lent_bytes,
        )


NOTHING = GpuUse()


def use(node: GpuNode) -> dict[str, GpuUse]:
    """Return the usage of each GPU by UUID, including GPUs that allocations name and the node no longer has."""
    used = {gpu.uuid: NOTHING for gpu in node.gpus}
    for entry in node.allocations:
        if len(entry.shares) > 1:
            for uuid in entry.gpu_uuids:
                used[uuid] = used.get(uuid, NOTHING).plus(entry, *held(entry, uuid))
            continue
        for share in entry.shares:  # fast path: nearly all have one share
            for uuid in share.gpu_uuids:
                used[uuid] = used.get(uuid, NOTHING).plus(entry, share.held_percent, share.held_bytes)
    for uuid, lent_bytes in node.lent_by_gpu().items():
        used[uuid] = dataclasses.replace(
            used[uuid], memory_bytes=used[uuid].memory_bytes + lent_bytes, lent_bytes=lent_bytes
        )
    return used


def held(entry: allocation.Allocation, uuid: str) -> tuple[int, int]:
    """Return an allocation's peak compute (percent) and memory (bytes) on a GPU."""
    return taken(share for share in entry.shares if uuid in share.gpu_uuids)


def held_in_all(entry: allocation.Allocation) -> tuple[int, int]:
    """Return an allocation's compute (percent) and memory (bytes), added up over its GPUs."""
    on_gpus = [held(entry, uuid) for uuid in entry.gpu_uuids]
    return sum(request_percent for request_percent, _ in on_gpus), sum(memory_bytes for _, memory_bytes in on_gpus)


def taken(shares: Iterable[allocation.GivenShare], during: allocation.Steps = allocation.ALL_STEPS) -> tuple[int, int]:
    """Return the peak compute (percent) and memory (bytes) of one pod's shares on one GPU during these steps."""
    moments = allocation.moments(shares, during)
    return (
        max((sum(share.held_percent for share in together) for together in moments), default=0),
        max((sum(share.held_bytes for share in together) for together in moments), default=0),
    )


def isolations(used: GpuUse) -> list[allocation.Isolation]:
    """Return the kinds of isolation of a GPU's shares. Backfill reservations of another kind may wait for them."""
    there = {holder.labels.isolation for holder in used.holders if not holder.is_backfill_reservation}
    return [kind for kind in allocation.Isolation if kind in there] if len(there) > 1 else [*there]


def _lacks_partitions(gpu: Gpu, holders: Iterable[allocation.Allocation]) -> str:
    """Return why these pods' shares cannot each have an SM partition of the GPU, as a clause; empty if they can."""
    if not gpu.sm_partitions:
        return ""
    slots = {
        allocation.slot(holder, share)
        for holder in holders
        if holder.labels.isolation is allocation.Isolation.MPS and not holder.is_backfill_reservation
        for share in holder.shares
        if gpu.uuid in share.gpu_uuids
    }
    return f"has {gpu.sm_partitions} SM partitions for {len(slots)} shares" if len(slots) > gpu.sm_partitions else ""


def violations(node: GpuNode) -> list[str]:
    """Return a sentence for each overcommitted GPU, each with several isolations, and each allocation on no GPU."""
    gpus = node.gpu_by_uuid()
    problems = []
    for uuid, held in use(node).items():
        names = ", ".join(str(holder.pod) for holder in held.holders)
        if uuid not in gpus:
            problems.append(f"{node.name} no longer has GPU {uuid}, held by {names}")
            continue
        where = f"{node.name}/{gpus[uuid].index} ({uuid})"
        if held.request_percent > 100:
            problems.append(f"{where} is overcommitted: {held.request_percent}% of its compute is held by {names}")
        if held.memory_bytes > gpus[uuid].memory_bytes:
            taken, there = map(quantity.format_bytes, (held.memory_bytes, gpus[uuid].memory_bytes))
            problems.append(f"{where} is overcommitted: {taken} of its {there} are held by {names}")
        if len(kinds := isolations(held)) > 1:
            problems.append(f"{where} has shares with isolation {' and '.join(kinds)}, held by {names}")
        if why := _lacks_partitions(gpus[uuid], held.holders):
            problems.append(f"{where} {why}, held by {names}")
        if why := mig_shares.conflict(gpus[uuid], held.holders):
            problems.append(f"{where} {why}")
    return [errors.shortened(sentence, longest=1000) for sentence in problems]


def reserve(node: GpuNode, entry: allocation.Allocation) -> GpuNode:
    """Return the node with one more allocation. Raises `LedgerError` for one from an outdated view that lacks room."""
    if any(held.id == entry.id for held in node.allocations):
        raise errors.LedgerError(f"{node.name} already has an allocation {entry.id}")
    gpus = node.gpu_by_uuid()
    after = dataclasses.replace(node, allocations=(*node.allocations, entry))
    used = use(after)
    for uuid in entry.gpu_uuids:
        if uuid not in gpus:
            raise errors.LedgerError(f"{node.name} has no GPU {uuid}")
        if used[uuid].request_percent > 100 or used[uuid].memory_bytes > gpus[uuid].memory_bytes:
            raise errors.LedgerError(f"{node.name}/{gpus[uuid].index} does not have enough left for {entry.pod}")
        if len(kinds := isolations(used[uuid])) > 1:
            said = f"{node.name}/{gpus[uuid].index} cannot have shares with isolation {' and '.join(kinds)} at once"
            raise errors.LedgerError(f"{said}, as with {entry.pod}")
        why = _lacks_partitions(gpus[uuid], used[uuid].holders) or mig_shares.conflict(gpus[uuid], used[uuid].holders)
        if why:
            raise errors.LedgerError(f"{node.name}/{gpus[uuid].index} {why}")
    return after


def confirm(node: GpuNode, pods: Mapping[str, allocation.PodRef]) -> GpuNode:
    """Return the node with these allocations (ID to pod) confirmed; the same object if all have a pod already."""
    new = {entry.id for entry in node.allocations if entry.id in pods and not entry.pod.uid}
    confirmed = (
        dataclasses.replace(entry, pod=pods[entry.id], reserved_until=None) if entry.id in new else entry
        for entry in node.allocations
    )
    return dataclasses.replace(node, allocations=tuple(confirmed)) if new else node


def settle(node: GpuNode, ids: Iterable[str]) -> GpuNode:
    """Return the node with these allocations confirmed for the pods they have. Raises LedgerError if one is missing."""
    wanted = frozenset(ids)
    missing = wanted - {entry.id for entry in node.allocations}
    if missing:
        raise errors.LedgerError(f"{node.name} no longer has the allocation {min(missing)}")
    if all(entry.reserved_until is None for entry in node.allocations if entry.id in wanted):
        return node
    settled = (
        dataclasses.replace(entry, reserved_until=None) if entry.id in wanted else entry for entry in node.allocations
    )
    return dataclasses.replace(node, allocations=tuple(settled))


def release(node: GpuNode, ids: Iterable[str]) -> GpuNode:
    """Return the node without these allocations, ignoring unknown IDs; the same object if it has none of them."""
    gone = frozenset(ids)
    kept = tuple(entry for entry in node.allocations if entry.id not in gone)
    return node if len(kept) == len(node.allocations) else dataclasses.replace(node, allocations=kept)
