"""Node by node: filter the GPUs of each node, price the rest, and choose the node and GPUs with the lowest cost.

`Fleet` finds the node over arrays and calls `choose` for its GPUs: for one node, arrays would take ten times as long.
Run over all nodes, this module explains a refusal with every rejected GPU. The laws compare `Fleet` with it: the same
pods fit, and refusals have the same sentence.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpushare import gpu_capacity, ledger, mig_shares, policies
from gpushare.allocation import Allocation, GivenShare, Isolation, PodRef, Steps
from gpushare.gpunode import Gpu
from gpushare.ledger import GpuUse
from gpushare.placement import explanation, filters, request_key, topology
from gpushare.placement.view import NodeView
from gpushare.refusal import Refusal, Rejected
from gpushare.request import Constraints, Demand, Request


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """A node, for each demand of the request in order its GPUs, and the kind of isolation there."""

    node: str
    shares: tuple[GivenShare, ...]
    isolation: Isolation = Isolation.ARBITER

    def allocation(
        self, request: Request, *, allocation_id: str, pod: PodRef, reserved_until: float | None
    ) -> Allocation:
        """Return the ledger entry for this placement."""
        return Allocation(
            id=allocation_id,
            pod=pod,
            shares=self.shares,
            reserved_until=reserved_until,
            labels=dataclasses.replace(request.constraints, isolation=self.isolation).labels,
            latency=request.latency,
        )


# The discount for a GPU where the pod already has a share that is in use at another time: it may need nothing more.
IN_TURN: Final = 1e6

# The cost of a GPU with this usage.
Price = Callable[[Gpu, GpuUse], float]


def fits_anywhere(_node: str) -> str | None:
    """Accept every node: for clusters where only the GPUs are known."""
    return None


def place(
    views: Iterable[NodeView],
    request: Request,
    *,
    policy: str = policies.DEFAULT,
    unfit: Callable[[str], str | None] = fits_anywhere,
    price: Price | None = None,
) -> Placement | Refusal:
    """Return the cheapest placement by the request's policy, or else `policy`; a refusal has every reason.

    `unfit` returns why a node cannot take the pod, as a clause, or None. `price` replaces the policy's costs.
    """
    best: tuple[float, str, Placement] | None = None
    rejected: list[Rejected] = []
    gpus = nodes = max_per_node = 0
    for view in views:
        nodes += bool(view.node.gpus)
        gpus += len(view.node.gpus)
        max_per_node = max(max_per_node, len(view.node.gpus))
        if not view.node.gpus:
            continue
        reason = unfit(view.node.name)
        if reason is not None:
            fitting = needed = 0
            for demand in request_key.in_order(request)[:1]:
                options, _ = _options(view.node.name, view.node.gpus, view.used, view.used, demand, request.constraints)
                fitting, needed = len(options), demand.gpus
            rejected.append(explanation.unfit(view.node.name, reason, fitting=fitting, needed=needed))
            continue
        choice = choose(view, request, policy=policy, price=price, rejected=rejected)
        if choice is not None and (best is None or (choice[0], view.node.name) < best[:2]):
            chosen = Placement(view.node.name, choice[1], request.constraints.isolation)
            best = (choice[0], view.node.name, chosen)
    if best is not None:
        return best[2]
    return explanation.refuse(request, rejected, gpus=gpus, nodes=nodes, max_per_node=max_per_node)


def choose(
    view: NodeView, request: Request, *, policy: str, price: Price | None, rejected: list[Rejected]
) -> tuple[float, tuple[GivenShare, ...]] | None:
    """Return cost and shares on one node that can take the pod; if none fit, add the reasons to `rejected` and return
    None.
    """
    cost_of = policies.POLICIES[request.policy or policy].cost
    used = dict(view.used)
    gpus = topology.in_order(view.node.gpus)
    # by GPU: shares that this pod has been given so far
    own: dict[str, list[GivenShare]] = collections.defaultdict(list)
    total, shares = 0.0, []
    for demand in request_key.in_order(request):
        meanwhile = _meanwhile(view.used, own, demand.steps) if own else used
        options, reasons = _options(view.node.name, gpus, used, meanwhile, demand, request.constraints)
        if len(options) < demand.gpus:
            rejected += reasons
            if options:
                rejected.append(explanation.too_few(view.node.name, fitting=len(options), needed=demand.gpus))
            return None
        layout = topology.layout(gpus)
        if price is not None:
            priced = {row: price(gpus[row], used[gpus[row].uuid]) for row in options}
        else:
            priced = _costs(cost_of, gpus, used, options)
            for row in options if own else ():
                if not all(share.steps.meets(demand.steps) for share in own[gpus[row].uuid]):
                    priced[row] -= IN_TURN
        rows = layout.choose(priced, demand.gpus)
        total += topology.total(priced, rows) + layout.apart(rows)
        given = demand.on(gpus[row] for row in rows)
        if request.constraints.isolation is Isolation.MIG:
            given = mig_shares.cut(gpus[rows[0]], demand.share, given, used[gpus[rows[0]].uuid].holders)
        used |= {gpus[row].uuid: options[row] for row in rows}
        shares.append(given)
        for row in rows:
            own[gpus[row].uuid].append(demand.on([gpus[row]]))
    return total, tuple(shares)


def _meanwhile(
    used: Mapping[str, GpuUse], own: Mapping[str, Sequence[GivenShare]], steps: Steps
) -> Mapping[str, GpuUse]:
    """Return the usage of each GPU during these steps of a pod with these shares."""
    held = {uuid: ledger.taken(own.get(uuid, ()), steps) for uuid in used}
    return {
        uuid: GpuUse(use.request_percent + held[uuid][0], use.memory_bytes + held[uuid][1], use.holders, use.lent_bytes)
        for uuid, use in used.items()
    }


def _options(
    node: str,
    gpus: Sequence[Gpu],
    used: Mapping[str, GpuUse],
    meanwhile: Mapping[str, GpuUse],
    demand: Demand,
    constraints: Constraints,
) -> tuple[dict[int, GpuUse], list[Rejected]]:
    """Return, by row, the GPUs that fit with their usage afterwards, and the reasons against the others.

    used: peak usage; meanwhile: usage while the demand is in use.
    """
    options, reasons = {}, []
    for row, gpu in enumerate(gpus):
        question = filters.FilterInput(gpu, meanwhile[gpu.uuid], demand.share, constraints)
        verdict = filters.reject(question)
        if verdict is not None:
            rule, detail, shortfall = verdict
            reasons.append(Rejected(node, gpu.index, rule, detail, shortfall))
            continue
        before = used[gpu.uuid]
        options[row] = GpuUse(
            max(before.request_percent, question.used.request_percent + demand.share.request_percent),
            max(before.memory_bytes, question.used.memory_bytes + question.memory_bytes),
            before.holders,
        )
    return options, reasons


def _costs(
    cost_of: policies.Cost, gpus: Sequence[Gpu], used: Mapping[str, GpuUse], options: Mapping[int, GpuUse]
) -> dict[int, float]:
    """Return the policy's costs by row."""
    layout = topology.layout(gpus)
    before = [_free(gpu, used[gpu.uuid]) for gpu in gpus]
    mean = [free.mean for free in before]

    def around(row: int, group: policies.Group) -> float:
        return float(next(of_all for rows, of_all in layout.means(group, mean) if row in rows))

    def option(row: int, after: GpuUse) -> policies.Option:
        return policies.Option(
            lambda: before[row],
            lambda: _free(gpus[row], after),
            lambda group: around(row, group),
            lambda: bool(gpu_capacity.excludes(after)),
        )

    return {row: float(cost_of(option(row, after))) for row, after in options.items()}


def _free(gpu: Gpu, used: GpuUse) -> policies.Free:
    percent, memory_bytes = gpu_capacity.free(gpu, used)
    return policies.Free(percent / 100, memory_bytes / (gpu.memory_bytes or 1))
