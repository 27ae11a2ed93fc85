"""ResourceQuota: what the quotas of a namespace leave for one pod more, as the API server has last counted. Pure.

https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors, pod
from gpushare.allocation import peak
from gpushare.nodefilters import pod_requests, share_resources
from gpushare.request import Request

_REQUESTS: Final = "requests."


@dataclasses.dataclass(frozen=True, slots=True)
class Allowance:
    """One ResourceQuota; amounts in the units of `gpushare.nodefilters.pod_requests`."""

    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]

    def lacks(self, asked: Mapping[str, int]) -> str | None:
        """What it does not leave of what is asked, as a sentence."""
        for name, most in self.hard.items():
            amount, left = asked.get(name, 0), max(0, most - self.used.get(name, 0))
            if amount > left:
                has, wants = pod_requests.format_amount(name, left), pod_requests.format_amount(name, amount)
                return f"the ResourceQuota {self.name} of its namespace leaves {has} of {name}, {wants} are asked"
        return None

    def after(self, asked: Mapping[str, int]) -> Allowance:
        """The same once a pod that asks for this is stored."""
        return dataclasses.replace(self, used=dict(collections.Counter(self.used) + collections.Counter(asked)))


def read(quota: Mapping[str, Any]) -> Allowance | None:
    """What a ResourceQuota object allows; None for one that counts only some of the pods, or nothing of a pod's."""
    spec = quota.get("spec") or {}
    hard, used = _amounts(spec.get("hard")), _amounts((quota.get("status") or {}).get("used"))
    if spec.get("scopes") or spec.get("scopeSelector") or not hard:
        return None
    return Allowance(str(quota["metadata"].get("name", "")), hard, used)


def uncounted(quotas: Iterable[Allowance], manifest: pod.PodJson, request: Request) -> str | None:
    """Why a request is denied, as a sentence; None if quotas bound what it asks for.

    Memory as a part of the GPU has no number of bytes before the GPU is chosen, so a quota of bytes cannot count it. Up
    to the part of the compute that is requested, a quota of compute bounds it.
    """
    hard = [(quota.name, resource) for quota in quotas for resource in quota.hard]
    return _in_parts(hard, request) or _in_turn(hard, manifest, request)


def _in_turn(hard: Iterable[tuple[str, str]], manifest: pod.PodJson, request: Request) -> str | None:
    """A quota counts a share of several containers with the first one named; the pod holds it for all of them."""
    if len(request.demands) < 2:
        return None  # which is counted wherever it is
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
                f"pod take {takes}: name no init container in {contract.CONTAINER}, where other containers have keys "
                "of their own"
            )
    return None


def _in_parts(hard: Sequence[tuple[str, str]], request: Request) -> str | None:
    name = next((name for name, resource in hard if resource == contract.RESOURCE_MEMORY), None)
    if name is None:
        return None
    is_compute_bounded = any(resource == contract.RESOURCE_PERCENT for _, resource in hard)
    for demand in request.demands:
        part = 0 if demand.share.memory.bytes is not None else demand.share.memory.percent or 0
        if part > (demand.share.request_percent if is_compute_bounded else 0):
            return (
                f"container {errors.quoted(demand.containers[0])} asks for {part}% of a GPU's memory, but the "
                f"ResourceQuota {name} of its namespace counts bytes of {contract.RESOURCE_MEMORY}: write "
                f'{contract.MEMORY} in bytes, such as "10Gi"'
            )
    return None


def asked(manifest: pod.PodJson, request: Request) -> dict[str, int]:
    """What a pod that asks for a share counts as, once our resources are in its containers."""
    shape, _ = share_resources.key_and_affinity(manifest, request)
    return {**dict(shape.amounts), **dict(shape.own), pod_requests.PODS: 1}


def _amounts(declared: Mapping[str, Any] | None) -> dict[str, int]:
    """Of what a pod asks; limits and numbers of other objects are left to the API server."""
    return pod_requests.allocatable({name.removeprefix(_REQUESTS): text for name, text in (declared or {}).items()})
