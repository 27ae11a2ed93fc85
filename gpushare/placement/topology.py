"""Topology: which GPUs of one node belong together, when a pod wants several of them.

Cards on one NUMA node reach each other, and the CPUs that feed them, without the link between sockets. Which of them
share an NVLink or a PCI switch is not known here: the agent does not report it, and bus numbers do not tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, TypeVar

from gpushare.gpu import Gpu

_Item = TypeVar("_Item")

MOST_EXACT: Final = 100  # combinations that are all looked at, as of 4 in 8; of more, some


def distance(one: Gpu, other: Gpu) -> int:
    """How far apart two cards are: 0 on one NUMA node, else 1. Those of which none is known are together."""
    return int(one.numa_node != other.numa_node)


def penalty(cards: Sequence[Gpu]) -> int:
    """The sum of the distances of all pairs: 0 for one card, or for cards that are all on one NUMA node."""
    return sum(distance(one, other) for one, other in itertools.combinations(cards, 2))


def choose(ranked: Sequence[tuple[float, Gpu, _Item]], count: int) -> list[tuple[float, Gpu, _Item]]:
    """`count` of the candidates `(cost, card, anything)`: those closest together, and of these the cheapest.

    The answer is in the order of cost and index, whatever that of `ranked` is; with fewer candidates than `count`, it
    is all of them. Among very many combinations it need not be the very best.
    """
    if count <= 1 or len(ranked) <= count:
        return sorted(ranked, key=_order)[:count]
    ordered = sorted(ranked, key=_order)
    if _combinations(len(ordered), count) <= MOST_EXACT:
        return min((list(some) for some in itertools.combinations(ordered, count)), key=_worth)
    return min((_grown(ordered, seed, count) for seed in range(len(ordered))), key=_worth)


def _grown(ordered: Sequence[tuple[float, Gpu, _Item]], seed: int, count: int) -> list[tuple[float, Gpu, _Item]]:
    """From one card on, always the one that is closest to those that are chosen."""
    chosen = [ordered[seed]]
    rest = [one for position, one in enumerate(ordered) if position != seed]
    while len(chosen) < count:
        nearest = min(rest, key=lambda one: (sum(distance(one[1], other[1]) for other in chosen), _order(one)))
        rest.remove(nearest)
        chosen.append(nearest)
    return sorted(chosen, key=_order)


def _worth(chosen: list[tuple[float, Gpu, _Item]]) -> tuple[int, float, tuple[tuple[float, int, str], ...]]:
    return penalty([card for _, card, _ in chosen]), sum(cost for cost, *_ in chosen), tuple(map(_order, chosen))


def _order(one: tuple[float, Gpu, _Item]) -> tuple[float, int, str]:
    return one[0], one[1].index, one[1].uuid


def _combinations(of: int, count: int) -> int:
    total = 1
    for step in range(min(count, of - count)):
        total = total * (of - step) // (step + 1)
    return total
