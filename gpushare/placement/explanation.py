"""Explanation: many rejected GPUs → one sentence with counts and the nearest miss."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from gpushare.placement import filters
from gpushare.refusal import Refusal, Rejected
from gpushare.request import Demand, Request

NODE_RULE = "node"  # the whole node cannot take the pod
COUNT_RULE = "count"  # each GPU alone would do, but the node has too few of them, or not for all containers at once


def refuse(request: Request, rejected: Sequence[Rejected], *, gpus: int, nodes: int) -> Refusal:
    """The refusal of a request that fits nowhere, among `gpus` GPUs on `nodes` nodes."""
    asked = " and ".join(describe(demand) for demand in request.demands)
    if not gpus:
        return Refusal(f"no GPU fits {asked}: gpushare knows of no GPU; does its agent run on the GPU nodes?")
    counts = collections.Counter(entry.rule for entry in rejected)
    parts = [f"{counts[rule]} {phrase}" for rule, (_, phrase) in filters.RULES.items() if counts[rule]]
    if counts[NODE_RULE]:
        parts.append(f"{_plural(counts[NODE_RULE], 'node')} that cannot take the pod")
    if counts[COUNT_RULE]:
        parts.append(f"{_plural(counts[COUNT_RULE], 'node')} with too few of them at once")
    nearest = min(rejected, key=lambda entry: entry.shortfall)
    found = f"of {_plural(gpus, 'GPU')} on {_plural(nodes, 'node')}, {', '.join(parts)}"
    return Refusal(f"no GPU fits {asked}: {found}; nearest: {nearest}", tuple(rejected))


def describe(demand: Demand) -> str:
    """A demand in a sentence: `0.5 GPU with 40Gi`, `2 GPUs, each 1 GPU with 100% of the memory`."""
    return str(demand.share) if demand.gpus == 1 else f"{demand.gpus} GPUs, each {demand.share}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
