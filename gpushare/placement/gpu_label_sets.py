"""GPU label sets: a small number for each distinct set of pod labels on a GPU, for the rules about other pods.

Most GPUs have one of a few sets (no pod; pods without labels), so a rule is evaluated per set, not per GPU. Rules
compare labels with the pod's own, so sets with none of the pod's labels are equal if they use the same keys; therefore
many labels cost no more than a few. Sets are reference-counted, and unused numbers are recycled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gpushare import ledger, mig_shares
from gpushare.allocation import Allocation, Isolation, Labels, Memory, MigInstance, PodRef, Share
from gpushare.gpunode import Gpu
from gpushare.modes.hardware_gpu import MAX_MPS_CLIENTS
from gpushare.placement import filters
from gpushare.placement.filters import FilterInput, Sees
from gpushare.request import Constraints

NOBODY: Final = 0
PASSES: Final = -1.0  # no shortfall: the GPU passes the rule

Shortfalls = npt.NDArray[np.float64]
_MAX_CACHED: Final = 256
_OTHER: Final = "\0"  # replaces a label that is not the pod's
_ANY_GPU, _ANY_SHARE = Gpu("", 0, "", 0), Share(0, 100, Memory(bytes=0))


@dataclasses.dataclass(frozen=True, slots=True)
class _Set:
    """The labels and MIG devices of the pods on a GPU. is_full: there are `MAX_MPS_CLIENTS` pods or more."""

    labels: frozenset[Labels] = frozenset()
    devices: frozenset[MigInstance] = frozenset()
    is_full: bool = False


class GpuLabelSets:
    """Sets of labels by number; number 0 is the empty set and always exists."""

    def __init__(self) -> None:
        self._sets = [_Set()]
        self._numbers = {_Set(): NOBODY}
        self._counts = [0]
        self._unused: list[int] = []
        self._likes = np.zeros(16, np.int64)  # by set: number of the class of sets with the same keys
        self._like_ids = {_Set(): NOBODY}
        self._with: dict[str, set[int]] = {}  # label -> numbers of the sets that have it
        self._cached: dict[Constraints, Mapping[str, Shortfalls]] = {}  # cache for the current sets

    def acquire(self, holders: Sequence[Allocation]) -> int:
        """Add a reference to the set of these pods' labels; return its number."""
        every = [holder.labels for holder in holders]
        if not every:
            return NOBODY
        devices = mig_shares.instances(holders) if every[0].isolation is Isolation.MIG else ()
        of = _Set(frozenset(every), frozenset(devices), len(every) >= MAX_MPS_CLIENTS)
        number = self._numbers.get(of)
        if number is None:
            number = self._add(of)
        self._counts[number] += 1
        return number

    @property
    def size(self) -> int:
        """How many numbers there are, unused ones included."""
        return len(self._sets)

    def instances(self, number: int) -> tuple[MigInstance, ...]:
        """Return the MIG devices of a set, by place."""
        return tuple(sorted(self._sets[number].devices, key=lambda device: device.start))

    def release(self, number: int) -> None:
        """Drop a reference to the set."""
        if number == NOBODY:
            return
        self._counts[number] -= 1
        if not self._counts[number]:
            self._remove(number)

    def are_exclusive(self) -> npt.NDArray[np.bool_]:
        """Return, by number, whether the set has an exclusion label."""
        return np.array([any(pod.exclusion for pod in like.labels) for like in self._like_ids])[self._likes]

    def shortfalls(self, constraints: Constraints) -> Mapping[str, Shortfalls]:
        """Return rule → shortfall by number, or PASSES; without rules that every set passes."""
        if constraints not in self._cached:
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            rules = {name: rule.check for name, rule in filters.RULES.items() if rule.sees is Sees.LABELS}
            shortfalls = {name: self._shortfalls(check, constraints) for name, check in rules.items()}
            self._cached[constraints] = {name: short for name, short in shortfalls.items() if (short > PASSES).any()}
        return self._cached[constraints]

    def _shortfalls(self, check: filters.Check, constraints: Constraints) -> Shortfalls:
        likes = np.array([_shortfall(check, like, constraints) for like in self._like_ids])
        shortfalls: Shortfalls = likes[self._likes[: len(self._sets)]]
        for label in {constraints.affinity, constraints.anti_affinity, constraints.exclusion} - {""}:
            for number in self._with.get(label, ()):
                shortfalls[number] = _shortfall(check, self._sets[number], constraints)
        return shortfalls

    def _add(self, added: _Set) -> int:
        number = self._unused.pop() if self._unused else len(self._sets)
        if number == len(self._sets):
            self._sets.append(added)
            self._counts.append(0)
            if number == len(self._likes):
                self._likes = np.concatenate([self._likes, np.zeros(number, np.int64)])
        self._sets[number] = added
        self._numbers[added] = number
        self._likes[number] = self._like_ids.setdefault(_like(added), len(self._like_ids))
        for label in _values(added):
            self._with.setdefault(label, set()).add(number)
        self._cached.clear()
        return number

    def _remove(self, number: int) -> None:
        removed = self._sets[number]
        self._sets[number] = _Set()
        del self._numbers[removed]
        self._unused.append(number)
        self._likes[number] = NOBODY
        for label in _values(removed):
            self._with[label].discard(number)
            if not self._with[label]:
                del self._with[label]
        self._cached.clear()


def _values(of: _Set) -> set[str]:
    return {value for pod in of.labels for value in (pod.affinity, pod.anti_affinity, pod.exclusion)} - {""}


def _like(of: _Set) -> _Set:
    """Return the set with the labels' keys only, and without MIG devices, which rules about labels do not see."""
    return _Set(frozenset(map(_keys, of.labels)), is_full=of.is_full)


def _keys(pod: Labels) -> Labels:
    affinity, anti_affinity, exclusion = (
        _OTHER if value else "" for value in (pod.affinity, pod.anti_affinity, pod.exclusion)
    )
    return Labels(affinity, anti_affinity, exclusion, pod.isolation)


def _shortfall(check: filters.Check, of: _Set, constraints: Constraints) -> float:
    holders = tuple(Allocation("", PodRef(""), (), labels=labels) for labels in of.labels)
    if of.is_full:
        holders *= MAX_MPS_CLIENTS
    verdict = check(FilterInput(_ANY_GPU, ledger.GpuUse(holders=holders), _ANY_SHARE, constraints))
    return PASSES if verdict is None else verdict[1]
