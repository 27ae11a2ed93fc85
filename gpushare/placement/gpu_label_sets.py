"""GPU label sets: a small number for each distinct set of pod labels on a GPU, for the rules about other pods.

Most GPUs have one of a few sets (no pod; pods without labels), so a rule is evaluated per set, not per GPU. Rules
compare labels with the pod's own, so sets with none of the pod's labels are equal if they use the same keys; therefore
many labels cost no more than a few. Sets are reference-counted, and unused numbers are recycled.
"""

from __future__ import annotations

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
# Labels and MIG devices; None: there are `MAX_MPS_CLIENTS` pods or more
_Set = frozenset[Labels | MigInstance | None]
_MAX_CACHED: Final = 256
_OTHER: Final = "\0"  # replaces a label that is not the pod's
_ANY_GPU, _ANY_SHARE = Gpu("", 0, "", 0), Share(0, 100, Memory(bytes=0))


class GpuLabelSets:
    """Sets of labels by number; number 0 is the empty set and always exists."""

    def __init__(self) -> None:
        self._sets: list[_Set] = [frozenset()]
        self._numbers: dict[_Set, int] = {frozenset(): NOBODY}
        self._counts = [0]
        self._unused: list[int] = []
        self._likes = np.zeros(16, np.int64)  # by set: number of the class of sets with the same keys
        self._like_ids: dict[_Set, int] = {frozenset(): NOBODY}
        self._with: dict[str, set[int]] = {}  # label -> numbers of the sets that have it
        self._cached: dict[Constraints, Mapping[str, Shortfalls]] = {}  # cache for the current sets

    def acquire(self, holders: Sequence[Allocation]) -> int:
        """Add a reference to the set of these pods' labels; return its number."""
        every = [holder.labels for holder in holders]
        if not every:
            return NOBODY
        crowd = (None,) if len(every) >= MAX_MPS_CLIENTS else ()
        devices = mig_shares.instances(holders) if every[0].isolation is Isolation.MIG else ()
        labels: _Set = frozenset((*every, *devices, *crowd))
        number = self._numbers.get(labels)
        if number is None:
            number = self._add(labels)
        self._counts[number] += 1
        return number

    @property
    def size(self) -> int:
        """How many numbers there are, unused ones included."""
        return len(self._sets)

    def instances(self, number: int) -> tuple[MigInstance, ...]:
        """Return the MIG devices of a set, by place."""
        devices = (one for one in self._sets[number] if isinstance(one, MigInstance))
        return tuple(sorted(devices, key=lambda device: device.start))

    def release(self, number: int) -> None:
        """Drop a reference to the set."""
        if number == NOBODY:
            return
        self._counts[number] -= 1
        if not self._counts[number]:
            self._remove(number)

    def are_exclusive(self) -> npt.NDArray[np.bool_]:
        """Return, by number, whether the set has an exclusion label."""
        return np.array([any(pod.exclusion for pod in _pods(labels)) for labels in self._like_ids])[self._likes]

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
        likes = np.array([_shortfall(check, labels, constraints) for labels in self._like_ids])
        shortfalls: Shortfalls = likes[self._likes[: len(self._sets)]]
        for label in {constraints.affinity, constraints.anti_affinity, constraints.exclusion} - {""}:
            for number in self._with.get(label, ()):
                shortfalls[number] = _shortfall(check, self._sets[number], constraints)
        return shortfalls

    def _add(self, labels: _Set) -> int:
        number = self._unused.pop() if self._unused else len(self._sets)
        if number == len(self._sets):
            self._sets.append(labels)
            self._counts.append(0)
            if number == len(self._likes):
                self._likes = np.concatenate([self._likes, np.zeros(number, np.int64)])
        self._sets[number] = labels
        self._numbers[labels] = number
        self._likes[number] = self._like_ids.setdefault(_like(labels), len(self._like_ids))
        for label in _values(labels):
            self._with.setdefault(label, set()).add(number)
        self._cached.clear()
        return number

    def _remove(self, number: int) -> None:
        labels = self._sets[number]
        self._sets[number] = frozenset()
        del self._numbers[labels]
        self._unused.append(number)
        self._likes[number] = NOBODY
        for label in _values(labels):
            self._with[label].discard(number)
            if not self._with[label]:
                del self._with[label]
        self._cached.clear()


def _pods(labels: _Set) -> list[Labels]:
    return [one for one in labels if isinstance(one, Labels)]


def _values(labels: _Set) -> set[str]:
    return {value for pod in _pods(labels) for value in (pod.affinity, pod.anti_affinity, pod.exclusion)} - {""}


def _like(labels: _Set) -> _Set:
    """Return the set with the labels' keys only, and without MIG devices, which rules about labels do not see."""
    crowd = {None} if None in labels else set[None]()
    return frozenset({*map(_keys, _pods(labels)), *crowd})


def _keys(pod: Labels) -> Labels:
    affinity, anti_affinity, exclusion = (
        _OTHER if value else "" for value in (pod.affinity, pod.anti_affinity, pod.exclusion)
    )
    return Labels(affinity, anti_affinity, exclusion, pod.isolation)


def _shortfall(check: filters.Check, labels: _Set, constraints: Constraints) -> float:
    holders = tuple(Allocation("", PodRef(""), (), labels=pod) for pod in _pods(labels))
    if None in labels:
        holders *= MAX_MPS_CLIENTS
    verdict = check(FilterInput(_ANY_GPU, ledger.GpuUse(holders=holders), _ANY_SHARE, constraints))
    return PASSES if verdict is None else verdict[1]
