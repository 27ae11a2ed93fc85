"""Preemption: the fewest victims on a node, pods of lower priority without which a pod fits, and the smallest loss.

The caller says whether the pod fits without some of them, so the placement engine decides, on the ledger as it would
be. Nodes are compared by the criteria of kube-scheduler's preemption, as far as they apply: the lowest of the highest
priorities, the lowest sum of priorities (which counts the pods, too), the fewest pods, the youngest pods. Pure.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpushare.allocation import Allocation

MAX_NOMINATED: Final = 4  # pods at a time for which others are evicted, of different namespaces and on different nodes
MAX_CHOICES: Final = 8  # sets of victims that are compared with the PodDisruptionBudgets for one pod
_LOWEST: Final = 2**31  # added to each priority, so that two pods never count less than one


@dataclasses.dataclass(frozen=True, slots=True)
class Victim:
    """A pod that may be evicted. created: as the API server writes it; such texts sort by time."""

    allocation: Allocation
    priority: int
    created: str


Victims = tuple[Victim, ...]


def fewest(candidates: Sequence[Victim], fits: Callable[[Victims], bool]) -> Victims | None:
    """Return the fewest victims on a node; None if evicting all candidates does not help.

    fits: whether the pod fits without these. As in kube-scheduler, the pods of the highest priority stay first
    if they can; of equals, those on crowded GPUs, so that few pods have to go, then the oldest.
    """
    gone = tuple(candidates)
    if not fits(gone):
        return None
    crowd = collections.Counter(uuid for victim in candidates for uuid in victim.allocation.gpu_uuids)

    def order(victim: Victim) -> tuple[int, int, str, str]:
        crowded = max((crowd[uuid] for uuid in victim.allocation.gpu_uuids), default=0)
        return -victim.priority, -crowded, victim.created, victim.allocation.id

    for victim in sorted(candidates, key=order):
        rest = tuple(other for other in gone if other is not victim)
        if fits(rest):
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
