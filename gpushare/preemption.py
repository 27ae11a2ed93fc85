"""Preemption: the fewest victims on a node, pods of lower priority without which a pod fits, and the smallest loss.

The placer acts on it and `why` explains by it, so both pass in what they know of pods, and how a pod is placed on a
node. The placement engine decides, on the ledger as it would be. Nodes are compared by the criteria of kube-scheduler's
preemption, as far as they apply: the lowest of the highest priorities, the lowest sum of priorities (which counts the
pods, too), the fewest pods, the youngest pods. Pure.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from gpushare import ledger, pod
from gpushare.allocation import Allocation, Isolation
from gpushare.defragmentation import evicting
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement
from gpushare.refusal import Refusal
from gpushare.request import Request

MAX_NOMINATED: Final = 4  # pods at a time for which others are evicted, of different namespaces and on different nodes
MAX_CHOICES: Final = 8  # sets of victims that are compared with the PodDisruptionBudgets for one pod
MAX_OPTIONS: Final = 100  # nodes on which the pod would fit, as in kube-scheduler
_LOWEST: Final = 2**31  # added to each priority, so that two pods never count less than one


@dataclasses.dataclass(frozen=True, slots=True)
class Victim:
    """A pod that may be evicted. created: as the API server writes it; such texts sort by time."""

    allocation: Allocation
    priority: int
    created: str


Victims = tuple[Victim, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """The pod of an allocation. ends: it is being deleted, or has ended. protection: why it stays, or empty."""

    priority: int
    created: str
    ends: bool
    protection: str


@dataclasses.dataclass(frozen=True, slots=True)
class Nomination:
    """The node and the GPUs that a pod gets once the victims have ended; is_ending: whether some end there already."""

    placement: Placement
    victims: Victims
    is_ending: bool


Holders = Callable[[Allocation], Holder | None]  # None: the pod is gone
# Places the pod, with this request, on a node as if these allocations and their pods had gone.
Place = Callable[[NodeView, Request, Sequence[Allocation]], Awaitable[Placement | Refusal]]
Search = Callable[[str], Awaitable[Nomination | None]]
Protected = Callable[[Victims], Awaitable[Collection[str]]]


async def find(
    view: NodeView,
    request: Request,
    holder: Holders,
    place: Place,
    *,
    uid: str,
    priority: int,
    own: Allocation | None = None,
) -> Nomination | None:
    """Return the fewest victims on a node (with `own`, on its GPUs); None if evicting all candidates is no help.

    request, uid, priority: of the pod for which others are evicted.
    """
    reserved = [entry for entry in view.node.allocations if entry.is_backfill_reservation]
    eligible, ending = candidates(view.node, priority, holder)
    if own is not None:
        # Others take the CPU and memory that victims free: more victims elsewhere on the node would follow them.
        eligible = [victim for victim in eligible if _overlaps(victim.allocation, own.gpu_uuids)]
    if own is None and not eligible and not ending:
        return None
    constraints = request.constraints
    others = tuple(uuid for entry in reserved if entry.pod.uid != uid for uuid in entry.gpu_uuids)
    constraints = dataclasses.replace(constraints, not_uuids=(*constraints.not_uuids, *others))
    if own is not None:
        constraints = dataclasses.replace(constraints, uuids=own.gpu_uuids)
    asked = dataclasses.replace(request, constraints=constraints)
    ignored = [*ending, *(entry for entry in reserved if entry.pod.uid == uid)]

    async def placed_without(gone: Victims) -> Placement | None:
        without = [*ignored, *(victim.allocation for victim in gone)]
        left = NodeView.from_node(ledger.release(view.node, [entry.id for entry in without]))
        outcome = await place(left, asked, without)
        if isinstance(outcome, Refusal) or outcome.isolation is Isolation.MIG:
            return None  # amounts reserve no place for a MIG device
        return outcome

    async def fits(gone: Victims) -> bool:
        return await placed_without(gone) is not None

    victims = await fewest(eligible, fits)
    placement = await placed_without(victims) if victims is not None else None
    if placement is None or victims is None:
        return None
    uuids = frozenset(uuid for share in placement.shares for uuid in share.gpu_uuids)
    # Those that only free CPU and memory go first: later rounds evict from the GPUs of the nomination alone.
    ordered = tuple(sorted(victims, key=lambda victim: _overlaps(victim.allocation, uuids)))
    return Nomination(placement, ordered, any(_overlaps(entry, uuids) for entry in ending))


def candidates(node: GpuNode, priority: int, holder: Holders) -> tuple[list[Victim], list[Allocation]]:
    """Return the pods that may be evicted, and the shares of pods that end anyway."""
    eligible, ending = list[Victim](), list[Allocation]()
    for entry in node.allocations:
        if entry.is_backfill_reservation or not entry.pod.uid:
            continue
        held = holder(entry)
        if held is None or held.ends:
            ending.append(entry)
        elif held.priority < priority and not held.protection:
            eligible.append(Victim(entry, held.priority, held.created))
    return eligible, ending


async def choose(nodes: Iterable[str], search: Search, protected: Protected) -> Nomination | None:
    """Return the smallest loss of which no victim is protected; None if there is none, or none is needed.

    search: searches a node; again without the victims that `protected` has named. protected: returns the UIDs of those
    that may not be evicted.
    """
    options: dict[str, Nomination] = {}
    for name in nodes:
        found = await search(name)
        if found is not None and not found.victims:
            return None  # it fits as soon as pods have ended that are being deleted
        if found is not None:
            options[name] = found
        if len(options) >= MAX_OPTIONS:
            break
    for _ in range(MAX_CHOICES):
        if not options:
            break
        name = least_lost({node: option.victims for node, option in options.items()})
        if not await protected(options[name].victims):
            return options[name]
        again = await search(name)
        if again is not None and again.victims:
            options[name] = again
        else:
            del options[name]
    return None


def forbidden(
    victims: Iterable[tuple[Victim, pod.PodJson | None]], budgets: evicting.Budgets, *, priority: int
) -> list[str]:
    """Return the UIDs of those that may not be evicted together, by their pods as they are now; None: it is gone."""
    uids: list[str] = []
    spent: collections.Counter[tuple[str, str]] = collections.Counter()
    for victim, manifest in victims:
        own = budgets.of_pod(manifest) if manifest is not None else []
        why = manifest is None or evicting.protected(manifest, max_priority=priority - 1)
        if why or len(own) > 1 or (manifest is not None and budgets.against(manifest, spent)):
            uids.append(victim.allocation.pod.uid)
        spent.update(own)
    return uids


def _overlaps(entry: Allocation, uuids: Collection[str]) -> bool:
    return any(uuid in uuids for uuid in entry.gpu_uuids)


async def fewest(candidates: Sequence[Victim], fits: Callable[[Victims], Awaitable[bool]]) -> Victims | None:
    """Return the fewest victims on a node; None if evicting all candidates does not help.

    fits: whether the pod fits without these. As in kube-scheduler, the pods of the highest priority stay first
    if they can; of equals, those on crowded GPUs, so that few pods have to go, then the oldest.
    """
    gone = tuple(candidates)
    if not await fits(gone):
        return None
    crowd = collections.Counter(uuid for victim in candidates for uuid in victim.allocation.gpu_uuids)

    def order(victim: Victim) -> tuple[int, int, str, str]:
        crowded = max((crowd[uuid] for uuid in victim.allocation.gpu_uuids), default=0)
        return -victim.priority, -crowded, victim.created, victim.allocation.id

    for victim in sorted(candidates, key=order):
        rest = tuple(other for other in gone if other is not victim)
        if await fits(rest):
            gone = rest
    return gone


def least_lost(options: Mapping[str, Victims]) -> str:
    """Return the node whose victims are the smallest loss; none of them may be empty."""

    def loss(name: str) -> tuple[int, int, int]:
        priorities = [victim.priority for victim in options[name]]
        return max(priorities), sum(priority + _LOWEST for priority in priorities), len(priorities)

    def oldest_of_the_highest(name: str) -> str:
        highest = loss(name)[0]
        return min(victim.created for victim in options[name] if victim.priority == highest)

    youngest_first = sorted(sorted(options), key=oldest_of_the_highest, reverse=True)
    return min(youngest_first, key=loss)


def names(victims: Sequence[Victim]) -> str:
    """Format pods for a sentence: `ml/a, ml/b, ml/c and 2 others`."""
    listed = ", ".join(str(victim.allocation.pod) for victim in victims[:3])
    more = len(victims) - 3
    return listed if more <= 0 else f"{listed} and {more} other{'s' if more > 1 else ''}"
