"""Costs: the reference's policies (`policies`) over arrays: the same numbers for the same GPUs, many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpushare import fragmentation
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import Columns, Floats, Ints

# By how many of the sizes fit, what those that do not weigh.
_USELESS = np.array(
    [
        sum(typical.weight for typical in fragmentation.DEFAULT_MIX[fitting:])
        for fitting in range(len(fragmentation.DEFAULT_MIX) + 1)
    ]
)

# (free compute in per cent, free memory in bytes) -> both as parts of the GPU, 0 to 1
_Parts = tuple[Floats, Floats]


def _parts(compute: Ints, memory: Ints, sizes: Ints) -> _Parts:
    return np.maximum(compute, 0) / 100, np.maximum(memory, 0) / np.maximum(sizes, 1)


def _after(columns: Columns, part: Needs, sizes: Ints) -> _Parts:
    memory = columns.memory - part.memory_bytes[columns.kind]
    return _parts(columns.compute - part.request_percent, memory, sizes[columns.kind])


def _left(columns: Columns, part: Needs, sizes: Ints) -> Floats:
    return _mean(*_after(columns, part, sizes))


def _mean(compute: Floats, memory: Floats) -> Floats:
    return (compute + memory) / 2


def _spread(columns: Columns, part: Needs, sizes: Ints) -> Floats:
    return -_left(columns, part, sizes)


def _fragmentation(columns: Columns, part: Needs, sizes: Ints) -> Floats:
    before = _stranded(*_parts(columns.compute, columns.memory, sizes[columns.kind]))
    left = _after(columns, part, sizes)
    return (_stranded(*left) - before) * 1000 + _mean(*left)


def _stranded(compute: Floats, memory: Floats) -> Floats:
    """As `fragmentation.stranded`: how many of the sizes fit says which do not, for they only get larger."""
    fitting = np.zeros(compute.shape, np.int64)
    for typical in fragmentation.DEFAULT_MIX:
        fitting += (typical.compute <= compute) & (typical.memory <= memory)
    stranded: Floats = (compute + memory) / 2 * _USELESS[fitting] / _USELESS[0]
    return stranded


# policy -> [g, n] cost of the part on each GPU; sizes [kind] in bytes
COSTS: Mapping[str, Callable[[Columns, Needs, Ints], Floats]] = {
    "fragmentation": _fragmentation,
    "pack": _left,
    "spread": _spread,
}
