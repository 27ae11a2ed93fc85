"""Chooses whole GPUs that are closely connected, without leaving bad choices to later requests.

The free GPUs are split into groups of the requested size, and the last group is padded with empty places. The best
split has the highest sum of all groups' scores, and its best full group is the answer. Ties go to the GPUs that come
first in `available`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from gpushare.gpunode import Gpu

NVLINK: Final = 100  # per link between two GPUs
WEIGHTS: Final[Mapping[str, int]] = {
    "SameBoard": 60,
    "SingleSwitch": 50,
    "MultiSwitch": 40,
    "HostBridge": 30,
    "SameCPU": 20,
    "CrossCPU": 10,
}
# Beyond this not every split is tried: instead a group is grown one GPU at a time from the best start. 8 GPUs stay far
# below the limits, as do groups of 2, 4 and 8 out of 16.
MAX_SPLIT: Final = 16
MAX_GROUPS: Final = 400_000

Scores = Mapping[tuple[int, int], int]
Group = tuple[int, ...]
_Split = tuple[int, tuple[int, ...]]


def pair_score(links: Sequence[str], *, nvlinks: int = 0) -> int:
    """Return how closely two GPUs are connected. links: the type of each path between them, as words of WEIGHTS."""
    return NVLINK * nvlinks + sum(WEIGHTS[link] for link in links)


def prefer(available: Sequence[int], *, required: Sequence[int], size: int, scores: Scores) -> Group:
    """Choose `size` of the `available` GPUs, in their order; () if that is impossible.

    required: GPUs that must be among them. scores: by pair of GPUs, in either order; a missing pair scores 0.
    """
    if size <= 0 or len(available) < size or len(required) > size or not set(required) <= set(available):
        return ()
    matrix = [[scores.get((a, b), scores.get((b, a), 0)) for b in available] for a in available]
    wanted = frozenset(available.index(gpu) for gpu in required)
    try:
        group = _best_split_group(matrix, wanted, size)
    except _TooManyError:
        group = _grow_group(matrix, wanted, size)
    return tuple(available[position] for position in group)


def _best_split_group(matrix: Sequence[Sequence[int]], wanted: frozenset[int], size: int) -> Group:
    count = len(matrix)
    if count > MAX_SPLIT:
        raise _TooManyError
    splits = _Splits(matrix, sum(1 << position for position in wanted), size)
    split = splits.best((1 << count) - 1, -count % size, False)
    groups = [_members(group) for group in split[1]] if split else []
    full = [group for group in groups if len(group) == size and wanted <= set(group)]
    return max(full, key=lambda group: _score(matrix, group), default=())  # ties go to the first


class _TooManyError(Exception):
    """There are more GPUs or groups than the search may try."""


class _Splits:
    """The best split for each set of remaining GPUs. A set is a bit mask and is solved once."""

    def __init__(self, matrix: Sequence[Sequence[int]], wanted: int, size: int) -> None:
        self._matrix = matrix
        self._wanted = wanted
        self._size = size
        self._tried = 0
        self._scores: dict[int, int] = {}
        self._solved: dict[tuple[int, int, bool], _Split | None] = {}

    def best(self, left: int, empty: int, full: bool) -> _Split | None:
        """Return the best sum and its groups. empty: places to pad with; full: whether a full group was chosen."""
        if not left:
            return (0, ()) if full and not empty else None
        state = (left, empty, full)
        if state not in self._solved:
            self._solved[state] = self._search(left, empty, full)
        return self._solved[state]

    def _search(self, left: int, empty: int, full: bool) -> _Split | None:
        first, *others = (1 << position for position in _members(left))
        split: _Split | None = None
        for count in range(self._size, max(self._size - empty, 1) - 1, -1):
            is_full = count == self._size
            if not (full or is_full) and len(others) + 1 - count < self._size:
                continue  # no full group would remain
            for combination in itertools.combinations(others, count - 1):
                group = sum(combination, first)
                met = group & self._wanted
                if met and not (is_full and met == self._wanted):
                    continue
                self._tried += 1
                if self._tried > MAX_GROUPS:
                    raise _TooManyError
                rest = self.best(left ^ group, empty - self._size + count, full or is_full)
                if rest is None:
                    continue
                total = self._score(group) + rest[0]
                if split is None or total > split[0] or (total == split[0] and _precedes(group, split[1][0])):
                    split = (total, (group, *rest[1]))
        return split

    def _score(self, group: int) -> int:
        if group not in self._scores:
            self._scores[group] = _score(self._matrix, _members(group))
        return self._scores[group]


def _members(positions: int) -> Group:
    return tuple(position for position in range(positions.bit_length()) if positions >> position & 1)


def _precedes(group: int, other: int) -> bool:
    """Whether `group` comes before `other` when both are sorted, with empty places last."""
    differing = group ^ other
    return bool(group & differing & -differing)


def _grow_group(matrix: Sequence[Sequence[int]], wanted: frozenset[int], size: int) -> Group:
    """Grow a good group from `wanted` or from each pair, each time by the most closely connected GPU."""
    starts = [tuple(sorted(wanted))] if wanted else list(itertools.combinations(range(len(matrix)), min(2, size)))
    best_group: Group = ()
    best = -1
    for start in starts:
        group = list(start)
        while len(group) < size:
            rest = (number for number in range(len(matrix)) if number not in group)
            group.append(max(rest, key=lambda gpu: sum(matrix[gpu][other] for other in group)))
        score = _score(matrix, group)
        if score > best:
            best_group, best = tuple(sorted(group)), score
    return best_group


def _score(matrix: Sequence[Sequence[int]], group: Sequence[int]) -> int:
    return sum(matrix[a][b] for a, b in itertools.combinations(group, 2))


class GpuPath(Protocol):
    """The connection of two GPUs. common: a word of WEIGHTS. nvlinks: the links without a switch."""

    @property
    def common(self) -> str: ...
    @property
    def nvlinks(self) -> int: ...


def scores_by_uuid(gpus: Sequence[Gpu], paths: Mapping[tuple[str, str], GpuPath]) -> dict[tuple[str, str], int]:
    """Return the score of each pair of GPUs, by UUID.

    paths: the driver's paths by pair, in either order. Where a path is missing, the NUMA nodes decide. GPUs of one
    NVLink group count as connected by at least one link, because a switch connects them all alike.
    """
    pair_scores = {}
    for gpu, other in itertools.combinations(gpus, 2):
        path = paths.get((gpu.uuid, other.uuid)) or paths.get((other.uuid, gpu.uuid))
        grouped = gpu.link_group is not None and gpu.link_group == other.link_group
        same_cpu = gpu.numa_node is not None and gpu.numa_node == other.numa_node
        common = path.common if path is not None else "SameCPU" if same_cpu else "CrossCPU"
        nvlinks = max(int(grouped), path.nvlinks if path is not None else 0)
        pair_scores[gpu.uuid, other.uuid] = pair_score([common], nvlinks=nvlinks)
    return pair_scores
