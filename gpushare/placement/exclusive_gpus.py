"""Exclusive GPUs: limit how many GPUs the pods of a namespace reserve for themselves with `gpushare.io/exclusion`.
Pure.

A ResourceQuota counts requests, but a share of 1 % with an exclusion label takes a whole GPU from other pods. So if the
quotas of a namespace bound `gpushare.io/gpu-percent`, its labelled pods hold at most one GPU for each 100 of that. A
pod that needs more GPUs than this leaves may only join GPUs where its own namespace already uses the same label.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from gpushare import contract, errors
from gpushare.placement.node_by_node import Placement
from gpushare.placement.view import NodeView
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from gpushare.resource_quota import Allowance

Attempt = Callable[[Request], Placement | Refusal]


@dataclasses.dataclass(frozen=True, slots=True)
class ExclusiveBound:
    """The ResourceQuota with the lowest limit on `gpushare.io/gpu-percent` in a namespace."""

    namespace: str
    quota: str
    percent: int

    @property
    def most_gpus(self) -> int:
        """The number of GPUs that the namespace may have to itself."""
        return max(self.percent // 100, min(self.percent, 1))


def bound_of(namespace: str, quotas: Iterable[Allowance]) -> ExclusiveBound | None:
    """Return the bound of a namespace with these quotas; None if none of them limits compute."""
    resource = contract.RESOURCE_PERCENT
    limits = [ExclusiveBound(namespace, quota.name, quota.hard[resource]) for quota in quotas if resource in quota.hard]
    return min(limits, key=lambda bound: (bound.percent, bound.quota), default=None)


def place(
    request: Request, bound: ExclusiveBound | None, views: Iterable[NodeView], attempt: Attempt
) -> Placement | Refusal:
    """Place a request by `attempt` such that its namespace stays within the bound.

    views: at least all nodes where pods with an exclusion label hold GPUs.
    """
    constraints = request.constraints
    if bound is None or not constraints.exclusion:
        return attempt(request)
    held = held_gpus(bound.namespace, views)
    left = bound.most_gpus - len(held)
    if gpus_of(request) <= left:
        return attempt(request)
    own = sorted(uuid for uuid, label in held.items() if label == constraints.exclusion)
    own = [uuid for uuid in own if uuid in (constraints.uuids or own)]
    if own:
        joining = dataclasses.replace(request, constraints=dataclasses.replace(constraints, uuids=tuple(own)))
        outcome = attempt(joining)
        if isinstance(outcome, Placement):
            return outcome
    if left > 0:  # it may take this many new GPUs
        outcome = attempt(request)
        if isinstance(outcome, Refusal) or len(_gpus(outcome) - held.keys()) <= left:
            return outcome
    return Refusal(_sentence(bound, request, held), cause=Cause.QUOTA)


def held_gpus(namespace: str, views: Iterable[NodeView], *, but: Collection[str] = ()) -> Mapping[str, str]:
    """Return the exclusion label of each GPU, by UUID, that a labelled pod of the namespace holds.

    but: UIDs of pods that do not count.
    """
    return {
        uuid: entry.labels.exclusion
        for view in views
        for entry in view.node.allocations
        if entry.labels.exclusion and entry.pod.namespace == namespace and entry.pod.uid not in but
        for uuid in entry.gpu_uuids
    }


def gpus_of(request: Request) -> int:
    """Return the most GPUs that the request can occupy."""
    return sum(demand.gpus for demand in request.demands)


def _gpus(placement: Placement) -> set[str]:
    return {uuid for share in placement.shares for uuid in share.gpu_uuids}


def _sentence(bound: ExclusiveBound, request: Request, held: Mapping[str, str]) -> str:
    label, asked = errors.quoted(request.constraints.exclusion), gpus_of(request)
    return (
        f"{contract.EXCLUSION} {label} asks for {asked} exclusive GPU{'s' * (asked != 1)}, but the namespace "
        f"{bound.namespace} already has {len(held)} of the {bound.most_gpus} that its ResourceQuota {bound.quota} "
        f"allows (requests.{contract.RESOURCE_PERCENT} is {bound.percent}, and each exclusive GPU counts as 100): use "
        "a label that the namespace already has on a GPU with room, wait until such a pod ends, or raise the quota"
    )
