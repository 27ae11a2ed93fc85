"""What a free part of a GPU is worth: what the mix of sizes could fill of it, when all GPUs are filled at once.

The linear programme of the cutting-stock problem: fill GPUs with patterns of sizes so that the most is used, with no
more of a size than the mix has. Its duals tell the scarcity of each size, small ones that fill up the rest above all. A
part is worth the best pattern that fits it, each size at its own worth less its scarcity: 0.19 of a GPU is nearly
nothing where nobody asks for so little, and 0.5 is half a GPU where halves are plenty.

Solved by subgradient steps, each one an unbounded knapsack over whole per cents; the later steps are averaged.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

STEPS = 600
STEPS_AGAIN = 300  # from the duals of a similar mix, the first steps of which are saved
_SIMILAR = 0.9  # of the demand must have duals already
_FIRST_STEP = 0.2
_SLOWER = 0.02


def worth(weights: Mapping[int, float], scarcity: Mapping[int, float]) -> tuple[list[float], dict[int, float]]:
    """`(worth, scarcity)`: the worth of 0 to 100 free per cent, 0 to 1, and the duals to start from the next time.

    weights: how often each size (1 to 100 per cent) is asked for. scarcity: duals of an earlier mix, or empty.
    """
    solved, duals = _solve(tuple(sorted(weights.items())), tuple(sorted(scarcity.items())))
    return list(solved), dict(duals)


@functools.lru_cache(maxsize=64)
def _solve(
    wanted: tuple[tuple[int, float], ...], earlier: tuple[tuple[int, float], ...]
) -> tuple[Sequence[float], Mapping[int, float]]:
    weights, scarcity = dict(wanted), dict(earlier)
    sizes = [size for size in sorted(weights) if weights[size] > 0]
    if not sizes:
        return [percent / 100 for percent in range(101)], {}
    mean = sum(size * weights[size] for size in sizes) / 100
    supply = [weights[size] / mean for size in sizes]  # of each size per GPU, so that the sizes add up to one GPU
    known = sum(weights[size] for size in sizes if size in scarcity) >= _SIMILAR * sum(weights.values())
    duals = [scarcity.get(size, 0.0) if known else 0.0 for size in sizes]
    steps, begin = (STEPS_AGAIN, STEPS - STEPS_AGAIN) if known else (STEPS, 0)
    total = [0.0] * 101
    mean_duals = [0.0] * len(sizes)
    for step in range(steps):
        best, used = _knapsack(sizes, duals)
        rate = _FIRST_STEP / (1 + (begin + step) * _SLOWER)
        for item, size in enumerate(sizes):
            duals[item] = max(0.0, duals[item] + rate * (used[item] - supply[item]) * size / 100)
        if step >= steps // 2:
            total = [so_far + part for so_far, part in zip(total, best, strict=True)]
            mean_duals = [so_far + dual for so_far, dual in zip(mean_duals, duals, strict=True)]
    rounds = steps - steps // 2
    whole = total[100]
    if whole <= 0:
        return [percent / 100 for percent in range(101)], {}
    return [part / whole for part in total], {size: dual / rounds for size, dual in zip(sizes, mean_duals, strict=True)}


def _knapsack(sizes: list[int], duals: list[float]) -> tuple[list[float], list[int]]:
    """Best value of each capacity of 0 to 100, and how often each size is in the best pattern of 100."""
    best = [0.0] * 101
    taken = [-1] * 101
    for item, size in enumerate(sizes):
        value = size / 100 - duals[item]
        if value <= 0:
            continue
        for capacity in range(size, 101):
            with_it = best[capacity - size] + value
            if with_it > best[capacity] + 1e-12:
                best[capacity] = with_it
                taken[capacity] = item
    used = [0] * len(sizes)
    capacity = 100
    while capacity > 0 and best[capacity] > 0:
        item = taken[capacity]
        used[item] += 1
        capacity -= sizes[item]
    return best, used
