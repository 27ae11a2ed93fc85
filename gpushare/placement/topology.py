"""Topology: which GPUs of one node are close to each other, for pods that want several.

GPUs joined by a link (NVLink) reach each other without the CPUs. GPUs on one NUMA node reach each other, and the CPUs
that feed them, without crossing sockets. A pod gets GPUs that are close together, and among equally close sets the
cheapest. Between nodes, one where the GPUs would be on different sockets costs a little more, and one where they would
not be linked, although it has that many linked GPUs, costs more than that.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpushare.gpunode import Gpu
from gpushare.policies import Group, Number

# up to so many sets, all are tried (4 of 8 is 70); beyond, only the cheapest of each neighbourhood
MAX_EXACT: Final = 100
APART_COST: Final = 0.1  # in GPUs, for a GPU on another NUMA node than all others of the pod
UNLINKED_COST: Final = 0.5  # in GPUs, for a GPU that is linked to none of the others on a node with enough linked GPUs

LINKED_AND_NEAR, LINKED, NEAR, APART = range(4)

Place = tuple[int | None, int | None]  # NUMA node and link group of a GPU


def in_order(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of a node by row: sorted by index, which breaks ties."""
    return tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid)))


@dataclasses.dataclass(frozen=True, slots=True)
class GpuTopology:
    """The distances between the GPUs of a node; equal for nodes with the same layout. Made by `layout`."""

    places: tuple[Place, ...]  # by row
    distances: tuple[tuple[int, ...], ...]  # between rows
    is_flat: bool  # all distances are equal

    def penalty(self, rows: Sequence[int]) -> int:
        """Return the sum of the distances of all pairs."""
        return sum(self.distances[first][second] for first, second in itertools.combinations(rows, 2))

    def apart(self, rows: Sequence[int]) -> float:
        """Return the cost, in GPUs, of the distances between these rows."""
        if len(rows) < 2:
            return 0.0
        costs = self.pair_costs(len(rows))
        return sum(costs[first][second] for first, second in itertools.combinations(rows, 2)) / (len(rows) - 1)

    def pair_costs(self, count: int) -> tuple[tuple[float, ...], ...]:
        """Return the cost between each pair of rows that `apart` adds up for a set of this size."""
        return _pair_costs(self, count)

    def links(self) -> tuple[tuple[int, ...], ...]:
        """Return the rows of each link group with several GPUs."""
        return _links(self)

    @property
    def most_linked(self) -> int:
        """The size of the largest link group; 1 if there is none."""
        return max((len(rows) for rows in self.links()), default=1)

    def is_exact(self, count: int) -> bool:
        """Whether all sets of this size are tried."""
        return math.comb(len(self.places), count) <= MAX_EXACT

    def neighbourhoods(self) -> tuple[frozenset[int], ...]:
        """Return the rows of each link group, then of each NUMA node."""
        neighbourhoods: dict[tuple[str, int | None], set[int]] = {}
        for row, (_, link_group) in enumerate(self.places):
            if link_group is not None:
                neighbourhoods.setdefault(("link", link_group), set()).add(row)
        for row, (numa_node, _) in enumerate(self.places):
            neighbourhoods.setdefault(("numa", numa_node), set()).add(row)
        return tuple(frozenset(rows) for rows in neighbourhoods.values())

    def groups(self, group: Group) -> tuple[tuple[int, ...], ...]:
        """Return the rows of each such group; every row is in one."""
        groups: dict[object, list[int]] = {}
        for row, (numa_node, link_group) in enumerate(self.places):
            match group:
                case Group.NODE:
                    key: object = None
                case Group.NUMA_NODE:
                    key = numa_node
                case Group.LINK_GROUP:
                    key = ("alone", row) if link_group is None else link_group
            groups.setdefault(key, []).append(row)
        return tuple(map(tuple, groups.values()))

    def means(self, group: Group, values: Sequence[Number]) -> Iterator[tuple[tuple[int, ...], Number]]:
        """Yield the rows of each such group with the mean of their values (by row: numbers, or arrays [n])."""
        for rows in self.groups(group):
            yield rows, functools.reduce(operator.add, (values[row] for row in rows)) / len(rows)

    def choose(self, costs: Mapping[int, float], count: int) -> tuple[int, ...]:
        """Return `count` of the rows in `costs`, in ascending order: the closest together, then the cheapest.

        If there are fewer rows, return all of them. With very many sets the result need not be optimal.
        """
        if count <= 1 or self.is_flat or len(costs) <= count:
            return tuple(sorted(sorted(costs, key=lambda row: (costs[row], row))[:count]))
        if self.is_exact(count):
            sets: Iterable[tuple[int, ...]] = itertools.combinations(sorted(costs), count)
        else:
            sets = (self._cheapest_in(rows, costs, count) for rows in self.neighbourhoods())
        return min(sets, key=lambda rows: (self.penalty(rows), total(costs, rows)))

    def _cheapest_in(self, rows: frozenset[int], costs: Mapping[int, float], count: int) -> tuple[int, ...]:
        """Return the cheapest of these rows, filled up with the cheapest of the others."""
        return tuple(sorted(sorted(costs, key=lambda row: (row not in rows, costs[row], row))[:count]))


def layout(gpus: Sequence[Gpu]) -> GpuTopology:
    """Return the topology of a node's GPUs, which must be `in_order`."""
    return _layout(tuple(_place(gpu) for gpu in gpus))


def total(costs: Mapping[int, float], rows: Sequence[int]) -> float:
    """Add the costs of these rows in sequence, to match the arrays' result to the last bit."""
    added = 0.0
    for row in rows:
        added += costs[row]
    return added


@functools.lru_cache(maxsize=4096)
def _layout(places: tuple[Place, ...]) -> GpuTopology:
    distances = tuple(tuple(_distance(place, other) for other in places) for place in places)
    pairs = {distances[first][second] for first, second in itertools.combinations(range(len(places)), 2)}
    return GpuTopology(places, distances, len(pairs) <= 1)


@functools.lru_cache(maxsize=4096)
def _pair_costs(layout: GpuTopology, count: int) -> tuple[tuple[float, ...], ...]:
    unlinked = UNLINKED_COST if count <= layout.most_linked else 0.0
    of_distance = {LINKED_AND_NEAR: 0.0, LINKED: 0.0, NEAR: unlinked, APART: APART_COST + unlinked}
    return tuple(tuple(of_distance[distance] for distance in row) for row in layout.distances)


@functools.lru_cache(maxsize=4096)
def _links(layout: GpuTopology) -> tuple[tuple[int, ...], ...]:
    return tuple(rows for rows in layout.groups(Group.LINK_GROUP) if len(rows) > 1)


def _place(gpu: Gpu) -> Place:
    return gpu.numa_node, gpu.link_group


def _distance(place: Place, other: Place) -> int:
    """Return the distance, from LINKED_AND_NEAR to APART. GPUs with unknown NUMA nodes count as near."""
    near = place[0] == other[0]
    if place[1] is not None and place[1] == other[1]:
        return LINKED_AND_NEAR if near else LINKED
    return NEAR if near else APART
