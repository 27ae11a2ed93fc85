"""ResourceQuota: what the quotas of a namespace leave for one more pod, by the API server's last count. Pure.

https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpushare import contract, errors, pod
from gpushare.allocation import peak
from gpushare.nodefilters import pod_requests, share_resources
from gpushare.request import Request


@dataclasses.dataclass(frozen=True, slots=True)
class Allowance:
    """One ResourceQuota; amounts in the units of `gpushare.nodefilters.pod_requests`."""

    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]

    def lacks(self, asked: Mapping[str, int]) -> str | None:
        """Return the first requested amount that the quota does not allow, as a sentence."""
        for name, most in self.hard.items():
            amount, left = asked.get(name, 0), max(0, most - self.used.get(name, 0))
            if amount > left:
                has, wants = pod_requests.format_amount(name, left), pod_requests.format_amount(name, amount)
                return f"the ResourceQuota {self.name} of its namespace leaves {has} of {name}, {wants} are requested"
        return None

    def after(self, asked: Mapping[str, int]) -> Allowance:
        """Return the quota after a pod with these amounts is stored."""
        return dataclasses.replace(self, used=dict(collections.Counter(self.used) + collections.Counter(asked)))


def read(quota: Mapping[str, Any]) -> Allowance | None:
    """Parse a ResourceQuota; None if it is scoped to some pods, or counts nothing that pods request."""
    spec = quota.get("spec") or {}
    hard, used = _amounts(spec.get("hard")), _amounts((quota.get("status") or {}).get("used"))
    if spec.get("scopes") or spec.get("scopeSelector") or not hard:
        return None
    return Allowance(str(quota["metadata"].get("name", "")), hard, used)


def uncounted(quotas: Iterable[Allowance], manifest: pod.PodJson, request: Request) -> str | None:
    """Return why the quotas cannot bound this request, as a sentence; None if they can.

    Memory as a percentage of the GPU has no number of bytes before the GPU is chosen, so a quota on bytes cannot count
    it. A quota on compute bounds it, up to the percentage of compute that is requested. Nothing bounds lent memory.
    """
    hard = [(quota.name, resource) for quota in quotas for resource in quota.hard]
    uncountable = _in_parts(hard, request)
    if uncountable:
        return uncountable
    if any(resource == contract.RESOURCE_MEMORY for _, resource in hard) and (said := lent_uncounted(request)):
        return said
    # The quotas must count all that the pod holds: they count a shared share only with its first container.
    if len(request.demands) < 2:
        return None  # a single share always counts in full
    held = {
        contract.RESOURCE_PERCENT: peak(request.demands, lambda demand: demand.share.request_percent * demand.gpus),
        contract.RESOURCE_MEMORY: peak(request.demands, lambda demand: (demand.share.memory.bytes or 0) * demand.gpus),
    }
    counted = asked(manifest, request)
    for name, resource in hard:
        amount, has = counted.get(resource, 0), held.get(resource, 0)
        if amount < has:
            counts, takes = (pod_requests.format_amount(resource, each) for each in (amount, has))
            return (
                f"the ResourceQuota {name} of its namespace would count {counts} of {resource}, but the shares of the "
                f"pod take {takes}: name no init container in {contract.CONTAINER} if other containers have their own "
                "keys"
            )
    return None


def evaded(quotas: Iterable[Allowance], replaced: Collection[str]) -> str | None:
    """Return which quota no longer bounds a pod that has a share instead of the `replaced` resources, as a sentence.

    None if no quota does, or if one counts shares, so that an administrator has bounded these instead.
    """
    hard = [(quota.name, resource) for quota in quotas for resource in quota.hard]
    if any(resource in {contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY} for _, resource in hard):
        return None
    for name, resource in hard:
        if resource in replaced:
            return (
                f"the ResourceQuota {name} of its namespace counts {resource}, which a pod with a share does not "
                f"request: add requests.{contract.RESOURCE_PERCENT} and requests.{contract.RESOURCE_MEMORY} to it"
            )
    return None


def lent_uncounted(request: Request) -> str | None:
    """Return why a quota on memory cannot bound this request, as a sentence, if memory could be lent to it."""
    if all(demand.share.memory_limit is None for demand in request.demands):
        return None
    return (
        f"a ResourceQuota of its namespace counts {contract.RESOURCE_MEMORY}, and cannot count memory that is lent: "
        f"remove {contract.MEMORY_LIMIT}"
    )


def _in_parts(hard: Sequence[tuple[str, str]], request: Request) -> str | None:
    name = next((name for name, resource in hard if resource == contract.RESOURCE_MEMORY), None)
    if name is None:
        return None
    is_compute_bounded = any(resource == contract.RESOURCE_PERCENT for _, resource in hard)
    for demand in request.demands:
        part = 0 if demand.share.memory.bytes is not None else demand.share.memory.percent or 0
        if part > (demand.share.request_percent if is_compute_bounded else 0):
            return (
                f"container {errors.quoted(demand.containers[0])} requests {part}% of a GPU's memory, but the "
                f"ResourceQuota {name} of its namespace counts bytes of {contract.RESOURCE_MEMORY}: write "
                f'{contract.MEMORY} in bytes, such as "10Gi"'
            )
    return None


def asked(manifest: pod.PodJson, request: Request) -> dict[str, int]:
    """Return the amounts that a pod counts for once gpushare's resources are in its containers."""
    shape, _ = share_resources.key_and_affinity(manifest, request)
    return {**dict(shape.amounts), **dict(shape.own), pod_requests.PODS: 1}


def _amounts(declared: Mapping[str, Any] | None) -> dict[str, int]:
    """Parse the amounts that pods request; the API server enforces limits and object counts."""
    return pod_requests.allocatable({name.removeprefix("requests."): text for name, text in (declared or {}).items()})
