"""The rows of `top -i` that are open or match the filter, made when they are looked at.

A cluster of 5,000 nodes has 165,000 rows, and a terminal shows forty. So the rows of a node are only counted until one
is needed. A filter has to look at each pod, which takes longer than a key press may: `advance` counts for a while, and
the rows that are counted can be shown meanwhile.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Final, overload

from kubectl_gpushare.views import gpu_table, gpu_tree, node_table
from kubectl_gpushare.views.gpu_summary import GpuSummary
from kubectl_gpushare.views.gpu_tree import UNPLACED, ClusterTree, HeldShare, Key, Look, NodeBranch, TreeRow

_BATCH: Final = 32  # nodes that are counted between two looks at the clock


class TreeRows(Sequence[TreeRow]):
    """The rows that a person has chosen to see, as far as they are counted.

    namespace: if any, only GPUs with pods of it are shown.
    """

    def __init__(self, tree: ClusterTree, look: Look, namespace: str = "") -> None:
        self._look = look
        self._namespace = namespace
        self._top = _unplaced(tree, look)
        self._branches = _sorted(tree, look)
        self._shown: list[NodeBranch] = []  # those with rows, of the counted ones
        self._starts: list[int] = []  # the number of the first row of each
        self._places: dict[str, int] = {}  # node -> place in `_shown`
        self._counted = 0
        self._length = len(self._top)
        self._last: tuple[int, list[TreeRow]] = -1, []  # the node whose rows were made last

    @property
    def is_complete(self) -> bool:
        return self._counted == len(self._branches)

    def advance(self, *, is_due: Callable[[], bool] = lambda: False) -> None:
        """Count the rows of more nodes, until all are counted or other work is due."""
        while not self.is_complete:
            for branch in self._branches[self._counted : self._counted + _BATCH]:
                if count := self._count(branch):
                    self._places[branch.row.node.name] = len(self._shown)
                    self._shown.append(branch)
                    self._starts.append(self._length)
                    self._length += count
            self._counted = min(self._counted + _BATCH, len(self._branches))
            if is_due():
                break

    def find(self, key: Key) -> int | None:
        """Return the number of a row; None if it is not among the counted ones."""
        if key[:1] == UNPLACED:
            return next((number for number, row in enumerate(self._top) if row.key == key), None)
        place = self._places.get(key[-1] if key[0] == "pod" else key[1])
        if place is None:
            return None
        rows = enumerate(self._rows(place), self._starts[place])
        return next((number for number, row in rows if row.key == key), None)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, number: int) -> TreeRow: ...
    @overload
    def __getitem__(self, number: slice) -> list[TreeRow]: ...
    def __getitem__(self, number: int | slice) -> TreeRow | list[TreeRow]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        if number < len(self._top):
            return self._top[number]
        place = bisect.bisect_right(self._starts, number) - 1
        return self._rows(place)[number - self._starts[place]]

    def _rows(self, place: int) -> list[TreeRow]:
        if self._last[0] != place:
            self._last = place, list(_branch(self._shown[place], self._look, self._namespace))
        return self._last[1]

    def _count(self, branch: NodeBranch) -> int:
        look = self._look
        if look.words:
            return sum(1 for _ in _branch(branch, look, self._namespace)) if _has(branch.whole, look.words) else 0
        if gpu_tree.node_key(branch) not in look.opened:
            return 1
        gpus = [gpu for gpu in branch.row.gpus if not self._namespace or gpu_tree.is_in(self._namespace, gpu)]
        return 1 + len(gpus) + sum(len(gpu.holders) for gpu in gpus if gpu_tree.gpu_key(gpu) in look.opened)


def _unplaced(tree: ClusterTree, look: Look) -> list[TreeRow]:
    unplaced = [row for row in tree.unplaced if _has(f"{row.namespace}/{row.name} {row.state}".lower(), look.words)]
    if not unplaced:
        return []
    is_open = UNPLACED in look.opened or bool(look.words)
    title = TreeRow(UNPLACED, 0, None, has_children=True, is_open=is_open)
    return [title, *(TreeRow((*UNPLACED, row.namespace, row.name), 1, row) for row in unplaced if is_open)]


def _sorted(tree: ClusterTree, look: Look) -> Sequence[NodeBranch]:
    if look.sort_by == "name":
        return tree.branches
    key, largest_first = node_table.SORT_KEYS[look.sort_by]
    return sorted(tree.branches, key=lambda branch: key(branch.row), reverse=largest_first)


def _branch(branch: NodeBranch, look: Look, namespace: str) -> Iterator[TreeRow]:
    """Yield the rows of a node; those above a match are open, so that it is seen."""
    key, gpus = gpu_tree.node_key(branch), branch.row.gpus
    is_open = key in look.opened or not _has(branch.own, look.words)
    yield TreeRow(key, 0, branch.row, has_children=bool(gpus), is_open=is_open and bool(gpus))
    if not is_open:
        return
    numbered = list(enumerate(gpus))
    if look.sort_by != "name":
        by, largest_first = gpu_table.SORT_KEYS[look.sort_by]
        numbered.sort(key=lambda pair: by(pair[1]), reverse=largest_first)
    for place, gpu in numbered:
        text, pods = (f"{branch.own} {branch.by_gpu[place][0]}", branch.by_gpu[place][1]) if look.words else ("", "")
        if _has(f"{text} {pods}", look.words) and (not namespace or gpu_tree.is_in(namespace, gpu)):
            yield from _gpu(gpu, text, look)


def _gpu(gpu: GpuSummary, text: str, look: Look) -> Iterator[TreeRow]:
    """Yield the rows of a GPU; `text` is its own and that of its node."""
    key = gpu_tree.gpu_key(gpu)
    is_open = bool(gpu.holders) and (key in look.opened or not _has(text, look.words))
    yield TreeRow(key, 1, gpu, has_children=bool(gpu.holders), is_open=is_open)
    for entry in gpu.holders if is_open else ():
        if _has(f"{text} {entry.pod}", look.words):
            yield TreeRow(("pod", gpu.gpu.uuid, entry.id, gpu.node), 2, HeldShare(gpu, entry))


def _has(text: str, words: Sequence[str]) -> bool:
    """Whether the text, whose names are lower-case as Kubernetes has them, has all these words."""
    return not words or all(word in text for word in words)
