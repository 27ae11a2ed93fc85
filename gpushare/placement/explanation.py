"""Explanation: many rejected GPUs → one sentence with counts and the nearest miss."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence

from gpushare import quantity
from gpushare.mix import Host
from gpushare.placement import filters
from gpushare.refusal import Cause, Refusal, Rejected
from gpushare.request import Demand, Request

NEVER = "none of these can ever fit"  # ends a refusal that waiting cannot change
NODE_SHORTFALL = 6.0  # and more, so that a GPU on a node that can take the pod is a nearer miss
NODE_RULE = "node"  # the whole node cannot take the pod
COUNT_RULE = "count"  # single GPUs fit, but too few, or not for all containers at once


def refuse(request: Request, rejected: Sequence[Rejected], *, gpus: int, nodes: int, max_per_node: int) -> Refusal:
    """Return the refusal of a request that fits nowhere; gpus: on all `nodes`; max_per_node: on the largest."""
    counts = collections.Counter(entry.rule for entry in rejected)
    return count(request, rejected, counts, gpus=gpus, nodes=nodes, max_per_node=max_per_node)


def count(
    request: Request,
    rejected: Sequence[Rejected],
    counts: Mapping[str, int],
    *,
    gpus: int,
    nodes: int,
    max_per_node: int,
) -> Refusal:
    """Return the refusal where `rejected` has only some candidates, with the nearest miss, and `counts` has all by
    rule.
    """
    asked = _asked(request.demands)
    if not gpus:
        said = f"no GPU fits {asked}: gpushare does not know any GPU; is its agent running on the GPU nodes?"
        return Refusal(said, cause=Cause.NO_GPU)
    parts = [f"{counts[name]} {rule.phrase}" for name, rule in filters.RULES.items() if counts.get(name)]
    if counts.get(NODE_RULE):
        parts.append(f"{_plural(counts[NODE_RULE], 'node')} that cannot take the pod")
    if counts.get(COUNT_RULE):
        parts.append(f"{_plural(counts[COUNT_RULE], 'node')} with too few fitting GPUs")
    known = f"of {_plural(gpus, 'GPU')} on {_plural(nodes, 'node')}"
    if not rejected:
        return Refusal(f"no GPU fits {asked}: {known}, no rule rejects any")
    nearest = min(rejected, key=lambda entry: entry.shortfall)
    said = f"no GPU fits {asked}: {known}, {', '.join(parts)}; nearest: {nearest}"
    lasting = {name for name, rule in filters.RULES.items() if rule.lasts}
    is_too_many = max((demand.gpus for demand in request.demands), default=0) > max_per_node
    lasts = is_too_many or {name for name, count in counts.items() if count} <= lasting
    if is_too_many:
        said += f"; no node has more than {_plural(max_per_node, 'GPU')}"
    if lasts:
        said += f"; {NEVER}"
    return Refusal(said, tuple(rejected), lasts=lasts)


def _asked(demands: Sequence[Demand]) -> str:
    """Format demands: `0.8 GPU with 8Gi and then 0.7 GPU with 4Gi` if the second is used only after the first."""
    in_order = sorted(demands, key=lambda demand: demand.steps.first)
    said = "".join(map(str, in_order[:1]))
    for before, demand in itertools.pairwise(in_order):
        said += f" and {'' if demand.steps.meets(before.steps) else 'then '}{demand}"
    return said


def unfit(node: str, reason: str, *, fitting: int, needed: int) -> Rejected:
    """Return a node that cannot take the pod; `fitting`: how many of its GPUs would fit the largest part."""
    return Rejected(node, None, NODE_RULE, reason, NODE_SHORTFALL + _missing(fitting, needed))


def host(asked: Host, *, cpu_milli: float, memory_bytes: float, pods: float) -> str:
    """Return why a node with so much free cannot take the pod, as a clause."""
    if pods < 1:
        return "has no room for one more pod"
    if asked.cpu_milli > cpu_milli:
        return f"has {max(0.0, cpu_milli) / 1000:g} CPUs free, {asked.cpu_milli / 1000:g} are needed"
    free, needed = quantity.format_bytes(max(0, int(memory_bytes))), quantity.format_bytes(asked.memory_bytes)
    return f"has {free} of host memory free, {needed} are needed"


def too_few(node: str, *, fitting: int, needed: int) -> Rejected:
    """Return a node with fewer fitting GPUs than needed."""
    detail = f"has {_plural(fitting, 'GPU')} that fit at once, {needed} are needed"
    return Rejected(node, None, COUNT_RULE, detail, _missing(fitting, needed))


def _missing(fitting: int, needed: int) -> float:
    return max(0, needed - fitting) / max(1, needed)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
