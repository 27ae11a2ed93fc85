"""The labels of the pods on a GPU, for affinity: each distinct set of labels has a small number.

Most GPUs have the same few sets (nobody; somebody without labels), so that a rule is judged once a set, not once a GPU.
Sets are counted, and their numbers used again when nobody has them any more; an index by label finds those that a rule
is about, so that many labels cost no more than few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from gpushare.allocation import Allocation, Labels
from gpushare.request import Constraints

NOBODY: Final = 0

_Set = frozenset[Labels]


class GpuLabelSets:
    """Sets of labels by number; number 0 is the empty set and always there."""

    def __init__(self) -> None:
        self._sets: list[_Set] = [frozenset()]
        self._numbers: dict[_Set, int] = {frozenset(): NOBODY}
        self._counts = [0]
        self._unused: list[int] = []
        self._exclusive = np.zeros(16, np.bool_)  # by set: whether any of its labels is exclusive
        self._exclusive_sets = 0
        self._exclusion: dict[str, set[int]] = {}  # label -> numbers of the sets in which all have it
        self._affinity: dict[str, set[int]] = {}  # label -> numbers of the sets that have it
        self._anti_affinity: dict[str, set[int]] = {}

    def enter(self, holders: Iterable[Allocation]) -> int:
        """The number of the set of their labels, which counts once more."""
        labels = frozenset(holder.labels for holder in holders)
        if not labels:
            return NOBODY
        number = self._numbers.get(labels)
        if number is None:
            number = self._add(labels)
        self._counts[number] += 1
        return number

    def leave(self, number: int) -> None:
        """The set counts once less."""
        if number == NOBODY:
            return
        self._counts[number] -= 1
        if not self._counts[number]:
            self._remove(number)

    def are_exclusive(self) -> npt.NDArray[np.bool_]:
        """By number, whether a label of the set keeps pods with another away."""
        return self._exclusive

    def matter(self, constraints: Constraints) -> bool:
        """Whether any set may rule a GPU out for a pod with these constraints."""
        return bool(self._exclusive_sets or constraints.exclusion or constraints.anti_affinity or constraints.affinity)

    def judge(self, constraints: Constraints) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Rule → by number, whether it lets the pod share with that set."""
        count = len(self._sets)
        exclusion = ~self._exclusive[:count]
        if constraints.exclusion:
            exclusion[1:] = False
            exclusion[list(self._exclusion.get(constraints.exclusion, ()))] = True
        anti_affinity = np.ones(count, np.bool_)
        if constraints.anti_affinity:
            anti_affinity[list(self._anti_affinity.get(constraints.anti_affinity, ()))] = False
        affinity = np.ones(count, np.bool_)
        if constraints.affinity:
            affinity[1:] = False
            affinity[list(self._affinity.get(constraints.affinity, ()))] = True
        return {"exclusion": exclusion, "anti-affinity": anti_affinity, "affinity": affinity}

    def _add(self, labels: _Set) -> int:
        number = self._unused.pop() if self._unused else len(self._sets)
        if number == len(self._sets):
            self._sets.append(labels)
            self._counts.append(0)
            if number == len(self._exclusive):
                self._exclusive = np.concatenate([self._exclusive, np.zeros(number, np.bool_)])
        self._sets[number] = labels
        self._numbers[labels] = number
        self._exclusive[number] = any(one.exclusion for one in labels)
        self._exclusive_sets += bool(self._exclusive[number])
        for index, label in self._entries(labels):
            index.setdefault(label, set()).add(number)
        return number

    def _remove(self, number: int) -> None:
        labels = self._sets[number]
        self._sets[number] = frozenset()
        del self._numbers[labels]
        self._unused.append(number)
        self._exclusive_sets -= bool(self._exclusive[number])
        self._exclusive[number] = False
        for index, label in self._entries(labels):
            index[label].discard(number)
            if not index[label]:
                del index[label]

    def _entries(self, labels: _Set) -> Iterator[tuple[dict[str, set[int]], str]]:
        """Where the set is indexed: (index, label), each once."""
        exclusions = {one.exclusion for one in labels}
        if len(exclusions) == 1:
            yield self._exclusion, exclusions.pop()
        yield from ((self._affinity, label) for label in {one.affinity for one in labels} - {""})
        yield from ((self._anti_affinity, label) for label in {one.anti_affinity for one in labels} - {""})
