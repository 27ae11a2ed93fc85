"""Borrowed GPUs: which GPUs of another device plugin take shares, and which placeholders to create and delete. Pure.

A *placeholder* is a pod that has one whole GPU of the other plugin, so that no other pod can get it. The GPU takes
shares while the node's agent and the ledger name the same placeholder. Before a placeholder ends, the ledger marks it,
in the object that every share on its GPU is written to, and only if there is none. The agent then ends it once no
process is left on the GPU. One that another client deletes keeps its GPU until then. So a GPU never has a share and a
whole-GPU pod, in any order of writes, retries and crashes.
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
        said = 'write how many of its GPUs gpushare may borrow, such as "4", or a range such as "1-4"'
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
            f"it offers no {contract.BORROWED_RESOURCE}: only GPUs of another device plugin can be borrowed, "
            "not those of a DRA driver (GPUCluster)"
        )
    if count > len(node.gpus):
        return f"it offers {count} {contract.BORROWED_RESOURCE} of {len(node.gpus)} GPUs, and {_WHOLE}"
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder that exists. node: the node that it is bound to, or for. created: Unix seconds.

    leaves: it is being deleted, by any client. in_use: its label says that its GPU has shares.
    message: why the scheduler does not bind it, or why it has failed.
    """

    name: str
    uid: str
    node: str
    is_bound: bool = False
    leaves: bool = False
    has_ended: bool = False
    in_use: bool = False
    created: float = 0.0
    message: str = ""

    @property
    def has_gpu(self) -> bool:
        """Whether it keeps other pods from its GPU, also while it is being deleted."""
        return self.is_bound and not self.has_ended


def _shared(node: GpuNode) -> frozenset[str]:
    entries = (entry for entry in node.allocations if not entry.is_backfill_reservation)
    return frozenset(uuid for entry in entries for uuid in entry.gpu_uuids)


def used_gpus(node: GpuNode) -> frozenset[str]:
    """Return the UUIDs of the GPUs with a share, or reserved for one; backfill reservations give way.

    An allocation that this release cannot read may be on any GPU of the node.
    """
    return _shared(node) | frozenset(gpu.uuid for gpu in node.gpus if node.unread)


def _hides_use(node: GpuNode) -> bool:
    """Whether a GPU that the agent does not report may have shares."""
    return bool(node.unread or not node.gpus or _shared(node) - {gpu.uuid for gpu in node.gpus})


def exposed(node: GpuNode, placeholders: Iterable[Placeholder]) -> dict[str, str]:
    """Return the GPUs with shares that no placeholder has any more, by UUID, with the last one's UID."""
    having = {one.uid for one in placeholders if one.has_gpu}
    used = _shared(node)
    return {
        gpu.uuid: node.borrowed.get(gpu.uuid, "")
        for gpu in node.gpus
        if gpu.uuid in used and gpu.owner and gpu.owner not in having
    }


def to_replace(node: GpuNode, placeholders: Collection[Placeholder], *, free: int, since: float) -> int:
    """Return how many placeholders the exposed GPUs need, before another pod gets one of them.

    free: how many GPUs the scheduler could bind now. since: Unix time at which the first one was exposed. A placeholder
    that was created since and got another GPU is not followed by the next one.
    """
    reported = {gpu.owner for gpu in node.gpus}
    tried = sum(one.created >= since - 1.0 and one.uid in reported for one in placeholders)  # created: whole seconds
    return max(0, min(len(exposed(node, placeholders)), free) - tried)


def fault(node: GpuNode, uid: str) -> str:
    """Return why no share can be placed on the GPU of this placeholder, as a clause; empty if some can."""
    for gpu in node.gpus:
        if gpu.owner == uid and (gpu.cordoned or not gpu.healthy):
            return given(node, uid, "is cordoned" if gpu.cordoned else "is unhealthy")
    return ""


def given(node: GpuNode, uid: str, why: str) -> str:
    """Return which GPU the placeholder has, as a clause; `why`: the fault of that GPU."""
    index = next((str(gpu.index) for gpu in node.gpus if gpu.owner == uid), "?")
    return f"the kubelet gave GPU {index}, which {why}"


def idle(node: GpuNode, placeholders: Iterable[Placeholder], kept: Collection[str]) -> list[Placeholder]:
    """Return the bound placeholders whose GPU has no share and is not in `kept` (UUIDs).

    One whose GPU the agent has not reported counts too, unless it could be that of shares.
    """
    placeholders = list(placeholders)
    gpu_of = {gpu.owner: gpu.uuid for gpu in node.gpus if gpu.owner}
    reserved = (uuid for entry in node.allocations for uuid in entry.gpu_uuids)
    busy = used_gpus(node).union(reserved, kept)
    hides = bool(exposed(node, placeholders)) or _hides_use(node)
    return [
        one
        for one in placeholders
        if one.has_gpu and not one.leaves and (gpu_of[one.uid] not in busy if one.uid in gpu_of else not hides)
    ]


def borrow(node: GpuNode, placeholders: Collection[Placeholder], given_back: Collection[str] = ()) -> GpuNode:
    """Return the node that borrows the GPUs of these placeholders; the same object if it does already.

    given_back: UIDs of placeholders that the placer wants to delete. The GPU of one that leaves takes no new share.
    Both are marked once their GPU has none. A marked placeholder's GPU is never borrowed again, so that another placer
    with an older list of placeholders cannot undo the mark.
    """
    used, there = used_gpus(node), {one.uid: one for one in placeholders if one.has_gpu}
    marks, borrowed = frozenset(node.borrowed.values()), dict[str, str]()
    for gpu in node.gpus:
        one = there.get(gpu.owner)
        if mark(gpu.owner) in marks:
            borrowed[gpu.uuid] = mark(gpu.owner)
        elif one is not None and gpu.uuid not in used and (one.leaves or one.uid in given_back):
            borrowed[gpu.uuid] = mark(one.uid)
        elif one is not None and not one.leaves:
            borrowed[gpu.uuid] = one.uid
    if not _hides_use(node) and not exposed(node, placeholders):  # one without a report may have the GPU of shares
        unreported = there.keys() - {gpu.owner for gpu in node.gpus}
        borrowed |= {uid: mark(uid) for uid in unreported if there[uid].leaves}
    return node if borrowed == node.borrowed else node.borrowing(borrowed)


def mark(uid: str) -> str:
    """Return the ledger's mark of a placeholder whose GPU is given back: its processes may end."""
    return f"-{uid}"


def may_end(node: GpuNode, uid: str) -> bool:
    """Whether the placeholder's GPU has no share, and gets none; `node`: as stored after `borrow`."""
    uuids = {gpu.uuid for gpu in node.gpus if gpu.owner == uid}
    is_used = bool(uuids & used_gpus(node)) if uuids else _hides_use(node)
    return mark(uid) in node.borrowed.values() and not is_used


def to_label(node: GpuNode, placeholders: Iterable[Placeholder]) -> list[Placeholder]:
    """Return the placeholders whose label has to change, as they should be: the scheduler preempts others first."""
    used = used_gpus(node)
    in_use = {gpu.owner for gpu in node.gpus if gpu.owner and gpu.uuid in used}
    there = (one for one in placeholders if one.has_gpu and not one.leaves)
    return [dataclasses.replace(one, in_use=not one.in_use) for one in there if one.in_use != (one.uid in in_use)]


def awaits_agent(node: GpuNode, one: Placeholder) -> bool:
    """Whether the node's agent has to act: report which GPU the placeholder has, or end it."""
    is_reported = any(gpu.owner == one.uid for gpu in node.gpus)
    return one.has_gpu and (may_end(node, one.uid) or not (is_reported or one.leaves))


@dataclasses.dataclass(frozen=True, slots=True)
class BorrowPlan:
    """For one node: the placeholders to give back, those to delete without a known GPU, and how many to create."""

    give_back: tuple[Placeholder, ...] = ()
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
) -> BorrowPlan:
    """Plan what to do on one node.

    placeholders: those of the node. wanted: how many more GPUs are needed there. idle_long: UIDs of those whose GPU has
    been idle for long enough, and is not needed. most: how many placeholders may be created.
    """
    there = [one for one in placeholders if not one.leaves]
    leaving = sum(one.leaves and one.has_gpu for one in placeholders)
    reported = {gpu.owner for gpu in node.gpus}
    bound = [one for one in there if one.has_gpu]
    pending = sorted((one for one in there if not one.is_bound and not one.has_ended), key=_age)
    coming = [one for one in bound if one.uid not in reported]
    wanted = max(wanted, bounds.least - (len(bound) - len(coming)))
    needed = max(0, wanted - len(coming))
    spare = max(0, len(bound) + min(len(pending), needed) - bounds.least)
    idle_reported = [one for one in bound if one.uid in idle_long and one.uid in reported]
    idle_coming = [one for one in coming if one.uid in idle_long][: max(0, len(coming) - wanted)]
    spared = [*idle_reported, *idle_coming][:spare]
    return BorrowPlan(
        give_back=tuple(one for one in spared if one.uid in reported),
        delete=(
            *(one for one in there if one.has_ended),
            *pending[needed:],
            *(one for one in spared if one.uid not in reported),
        ),
        create=min(max(0, needed - len(pending)), max(0, bounds.most - len(bound) - leaving - len(pending)), most),
    )


def _age(one: Placeholder) -> tuple[float, str]:
    return one.created, one.name
