"""Borrowed GPUs: which GPUs of another device plugin take shares, and which placeholders to create and delete. Pure.

A *placeholder* is a pod that has one whole GPU of the other plugin, so that no other pod can get it. The GPU takes
shares while the node's agent and the ledger name the same placeholder. A placeholder that is deleted, by any client,
keeps its GPU until the placer ends it. Before that, the ledger marks the GPU as given back, in the object that every
share on it is written to, and only if it has none. So a GPU never has a share and a whole-GPU pod, whatever the order
of writes, retries and crashes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gpushare import contract, errors
from gpushare.gpunode import GpuNode

MAX_GPUS: Final = 512  # of a node, as in a GPUNode
_SHARING_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
_REPLICAS_LABEL: Final = "nvidia.com/gpu.replicas"
_MIG_LABEL: Final = "nvidia.com/mig.strategy"
_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
_GIVEN_BACK: Final = "-"  # before the UID of the last placeholder, in the ledger
_WHOLE: Final = "only whole GPUs can be borrowed"


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How many GPUs of a node are borrowed: at least, also without a pod that needs one, and at most."""

    least: int
    most: int


def read_bounds(text: str) -> Bounds:
    """Read the Node's label, `4` or `1-4`. Raises QuantityError with a clause."""
    match = re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,3})", text)
    least, most = (int(match[1] or 0), int(match[2])) if match else (0, 0)
    if not match or not least <= most <= MAX_GPUS:
        said = "write how many of its GPUs gpushare may borrow, such as 4, or the fewest and the most, such as 1-4"
        raise errors.QuantityError(f"its label {contract.BORROW_LABEL} is {errors.quoted(text)}: {said}")
    return Bounds(least, most)


def refusal(node: GpuNode, labels: Mapping[str, str], offered: Mapping[str, int]) -> str:
    """Return why no GPU of the node can be borrowed, as a clause; empty if one can.

    labels, offered: the Node's labels and allocatable amounts.
    """
    count = offered.get(contract.BORROWED_RESOURCE, 0)
    sharing, replicas = labels.get(_SHARING_LABEL, "none"), labels.get(_REPLICAS_LABEL, "1")
    if sharing != "none":
        return f"its GPUs are already shared by {sharing} (label {_SHARING_LABEL}), and {_WHOLE}"
    if replicas not in {"0", "1"}:
        return f"its GPUs are offered {replicas} times each (label {_REPLICAS_LABEL}), and {_WHOLE}"
    in_mig_mode = "-MIG-" in labels.get(_PRODUCT_LABEL, "") or any(gpu.mig_profiles for gpu in node.gpus)
    if in_mig_mode or any(name.startswith("nvidia.com/mig-") and amount for name, amount in offered.items()):
        strategy = labels.get(_MIG_LABEL, "none")
        return f"it has GPUs in MIG mode (label {_MIG_LABEL}: {strategy}), and {_WHOLE}"
    if not count:
        return (
            f"it offers no {contract.BORROWED_RESOURCE}: another device plugin must give its GPUs, "
            "and GPUs that are given by DRA (GPUCluster) cannot be borrowed"
        )
    if count > len(node.gpus):
        return f"it offers {count} {contract.BORROWED_RESOURCE} of {len(node.gpus)} GPUs, and {_WHOLE}"
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder that exists. node: the node that it is bound to, or for. created: Unix seconds.

    leaves: it is being deleted, by any client. message: why the scheduler does not bind it, or why it has failed.
    """

    name: str
    uid: str
    node: str
    is_bound: bool = False
    leaves: bool = False
    has_ended: bool = False
    created: float = 0.0
    message: str = ""

    @property
    def has_gpu(self) -> bool:
        """Whether it keeps other pods from its GPU, also while it is being deleted."""
        return self.is_bound and not self.has_ended


def used_gpus(node: GpuNode) -> frozenset[str]:
    """Return the UUIDs of the GPUs with a share, or reserved for one; backfill reservations give way."""
    entries = (entry for entry in node.allocations if not entry.is_backfill_reservation)
    return frozenset(uuid for entry in entries for uuid in entry.gpu_uuids)


def exposed(node: GpuNode, placeholders: Iterable[Placeholder]) -> dict[str, str]:
    """Return the GPUs with shares that no placeholder has any more, by UUID, with the last one's UID."""
    having = {one.uid for one in placeholders if one.has_gpu}
    used = used_gpus(node)
    return {
        gpu.uuid: node.borrowed.get(gpu.uuid, "")
        for gpu in node.gpus
        if gpu.uuid in used and gpu.owner and gpu.owner not in having
    }


def idle(node: GpuNode, placeholders: Iterable[Placeholder], kept: Collection[str]) -> list[Placeholder]:
    """Return the bound placeholders whose GPU has no share and is not in `kept` (UUIDs).

    One whose GPU the agent has not reported counts too, unless it could be that of shares.
    """
    placeholders = list(placeholders)
    gpu_of = {gpu.owner: gpu.uuid for gpu in node.gpus if gpu.owner}
    busy = frozenset(uuid for entry in node.allocations for uuid in entry.gpu_uuids) | frozenset(kept)
    hides = bool(exposed(node, placeholders)) or not node.gpus
    return [
        one
        for one in placeholders
        if one.has_gpu and not one.leaves and (gpu_of[one.uid] not in busy if one.uid in gpu_of else not hides)
    ]


def borrow(node: GpuNode, placeholders: Iterable[Placeholder]) -> GpuNode:
    """Return the node that borrows the GPUs of these placeholders; the same object if it does already.

    A GPU whose placeholder leaves takes no new share, and is marked once it has none. A marked GPU is not borrowed
    again by the same placeholder, so that another placer with an older list of placeholders cannot undo the mark.
    """
    used, there = used_gpus(node), {one.uid: one for one in placeholders if one.has_gpu}
    borrowed = {}
    for gpu in node.gpus:
        now, one = node.borrowed.get(gpu.uuid, ""), there.get(gpu.owner)
        if now == _GIVEN_BACK + gpu.owner:
            borrowed[gpu.uuid] = now
        elif one is not None and not one.leaves:
            borrowed[gpu.uuid] = one.uid
        elif one is not None and gpu.uuid not in used:
            borrowed[gpu.uuid] = _GIVEN_BACK + one.uid
    return node if borrowed == node.borrowed else node.borrowing(borrowed)


def may_end(node: GpuNode, placeholders: Iterable[Placeholder], one: Placeholder) -> bool:
    """Whether the GPU of a placeholder that leaves has no share, and gets none. `node`: as stored after `borrow`."""
    gpu = next((gpu for gpu in node.gpus if gpu.owner == one.uid), None)
    if gpu is None:  # it may have the GPU of shares that the agent has not reported
        return bool(node.gpus) and not exposed(node, placeholders)
    return node.borrowed.get(gpu.uuid) == _GIVEN_BACK + one.uid and gpu.uuid not in used_gpus(node)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """For one node: the placeholders to delete, and how many to create."""

    delete: tuple[Placeholder, ...] = ()
    create: int = 0


def plan(
    node: GpuNode,
    placeholders: Collection[Placeholder],
    bounds: Bounds,
    *,
    wanted: int,
    idle_long: Collection[str],
    most: int,
) -> Plan:
    """Plan what to do on one node.

    placeholders: those of the node. wanted: how many more GPUs waiting pods need there. idle_long: UIDs of those whose
    GPU has been idle for long enough, and is not needed. most: how many placeholders may be created.
    """
    there = [one for one in placeholders if not one.leaves]
    leaving = sum(one.leaves and one.has_gpu for one in placeholders)
    reported = {gpu.owner for gpu in node.gpus}
    bound = [one for one in there if one.has_gpu]
    pending = sorted((one for one in there if not one.is_bound and not one.has_ended), key=_age)
    coming = [one for one in bound if one.uid not in reported]
    # A GPU that has lost its placeholder, but not its shares, should have one again before another pod gets it.
    wanted = max(wanted + len(exposed(node, placeholders)), bounds.least - (len(bound) - len(coming)))
    needed = max(0, wanted - len(coming))
    spare = max(0, len(bound) + min(len(pending), needed) - bounds.least)
    return Plan(
        delete=(
            *(one for one in there if one.has_ended),
            *pending[needed:],
            *[one for one in bound if one.uid in idle_long][:spare],
        ),
        create=min(max(0, needed - len(pending)), max(0, bounds.most - len(bound) - leaving - len(pending)), most),
    )


def _age(one: Placeholder) -> tuple[float, str]:
    return one.created, one.name
