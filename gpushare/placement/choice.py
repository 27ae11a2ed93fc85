"""The choice: filter, score, take the node and the GPUs that cost least."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpushare.allocation import Allocation, GivenShare, Labels, PodRef
from gpushare.gpu import Gpu
from gpushare.ledger import Use
from gpushare.placement import explanation, filters, policies, shape, topology
from gpushare.placement.view import NodeView
from gpushare.refusal import Refusal, Rejected
from gpushare.request import Constraints, Demand, Request


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """A node and, for each demand of the request in order, its GPUs."""

    node: str
    shares: tuple[GivenShare, ...]

    def allocation(
        self, request: Request, *, allocation_id: str, pod: PodRef, reserved_until: float | None
    ) -> Allocation:
        """The ledger entry for it."""
        constraints = request.constraints
        return Allocation(
            id=allocation_id,
            pod=pod,
            shares=self.shares,
            reserved_until=reserved_until,
            labels=Labels(constraints.affinity, constraints.anti_affinity, constraints.exclusion),
            latency=request.latency,
        )


def fits_anywhere(_node: str) -> str | None:
    """Judges every node fit: for clusters of which only the GPUs are known."""
    return None


def place(
    views: Iterable[NodeView],
    request: Request,
    *,
    policy: str = policies.DEFAULT,
    unfit: Callable[[str], str | None] = fits_anywhere,
    costs: Mapping[str, policies.Cost] = policies.POLICIES,
) -> Placement | Refusal:
    """The cheapest placement by the request's policy, or else `policy`; a refusal with every reason if there is none.

    `unfit` says, as the rest of a sentence, why a node cannot take the pod at all, or None. `costs`: by policy.
    """
    cost_of = costs[request.policy or policy]
    best: tuple[float, str, Placement] | None = None
    rejected: list[Rejected] = []
    gpus = nodes = 0
    for view in views:
        nodes += bool(view.node.gpus)
        gpus += len(view.node.gpus)
        if not view.node.gpus:
            continue
        reason = unfit(view.node.name)
        if reason is not None:
            rejected.append(explanation.unfit(view.node.name, reason))
            continue
        found = _place_on(view, request, cost_of, rejected)
        if found is not None and (best is None or (found[0], view.node.name) < best[:2]):
            best = (found[0], view.node.name, Placement(view.node.name, found[1]))
    if best is not None:
        return best[2]
    return explanation.refuse(request, rejected, gpus=gpus, nodes=nodes)


def _place_on(
    view: NodeView, request: Request, cost_of: policies.Cost, rejected: list[Rejected]
) -> tuple[float, tuple[GivenShare, ...]] | None:
    """Cost and shares on one node, or None with the reasons added to `rejected`."""
    used = dict(view.used)
    cards = topology.in_order(view.node.gpus)
    total, shares = 0.0, []
    for demand in shape.in_order(request):
        options, reasons = _options(view.node.name, cards, used, demand, request.constraints)
        if len(options) < demand.gpus:
            rejected += reasons
            if options:
                rejected.append(explanation.too_few(view.node.name, found=len(options), needed=demand.gpus))
            return None
        layout = topology.layout(cards)
        priced = {row: cost_of(option) for row, option in options.items()}
        rows = layout.choose(priced, demand.gpus)
        total += topology.total(priced, rows) + layout.apart(rows)
        used |= {cards[row].uuid: options[row].after for row in rows}
        shares.append(given(demand, [cards[row] for row in rows]))
    return total, tuple(shares)


def _options(
    node: str, cards: Sequence[Gpu], used: Mapping[str, Use], demand: Demand, constraints: Constraints
) -> tuple[dict[int, policies.Option], list[Rejected]]:
    """By row the cards that will do, and why the others will not."""
    options, reasons = {}, []
    for row, card in enumerate(cards):
        question = filters.Question(card, used[card.uuid], demand.share, constraints)
        verdict = filters.reject(question)
        if verdict is not None:
            rule, detail, shortfall = verdict
            reasons.append(Rejected(node, card.index, rule, detail, shortfall))
            continue
        before = used[card.uuid]
        after = Use(
            before.request_percent + demand.share.request_percent,
            before.memory_bytes + question.memory_bytes,
            before.holders,
        )
        options[row] = policies.Option(card, before, after)
    return options, reasons


def given(demand: Demand, cards: Sequence[Gpu]) -> GivenShare:
    """The entry for all of a demand's cards, which a container has as one share."""
    uuids = tuple(card.uuid for card in sorted(cards, key=lambda one: one.index))
    share = demand.share
    memory_bytes = share.memory.on_all(card.memory_bytes for card in cards)
    return GivenShare(demand.containers, uuids, share.request_percent, share.limit_percent, memory_bytes)
