"""ResourceQuota: what the quotas of a namespace leave for one pod more, as the API server has last counted. Pure.

https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from gpushare import pod
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


def asked(manifest: pod.PodJson, request: Request) -> dict[str, int]:
    """What a pod that asks for a share counts as, once our resources are in its containers."""
    shape, _ = share_resources.of(manifest, request)
    return {**dict(shape.amounts), **dict(shape.own), pod_requests.PODS: 1}


def _amounts(declared: Mapping[str, Any] | None) -> dict[str, int]:
    """Of what a pod asks; limits and numbers of other objects are left to the API server."""
    return pod_requests.allocatable({name.removeprefix(_REQUESTS): text for name, text in (declared or {}).items()})
