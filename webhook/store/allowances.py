"""Allowances: what the ResourceQuotas of each namespace leave, as the API server has last counted.

The API server asks the quotas after the webhook. A share that was reserved for a pod that they then refuse would be
kept from others until it lapses; so whom they will refuse is given none. If what we know is old, and the pod is stored
after all, the placer gives it its turn.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Final

from gpushare import pod, resource_quota
from gpushare.cluster import api_client, informer
from gpushare.cluster import object_store as objects
from gpushare.placement import exclusive_gpus
from gpushare.request import Request

QUOTAS_PATH: Final = "/api/v1/resourcequotas"


class Allowances:
    """Keeps the quotas of all namespaces while `run` does."""

    def __init__(self, api: api_client.ApiClient) -> None:
        self._by_namespace: dict[str, dict[str, resource_quota.Allowance]] = collections.defaultdict(dict)
        self._quotas = informer.Informer(api, QUOTAS_PATH, transform=kept)
        self._quotas.subscribe(self._changed)

    async def run(self) -> None:
        """Keep them true until cancelled."""
        await self._quotas.run()

    async def synced(self) -> None:
        """Wait until they have been read once."""
        await self._quotas.synced.wait()

    @property
    def informers(self) -> tuple[informer.Informer, ...]:
        """The informers that keep the quotas true."""
        return (self._quotas,)

    def missing(self) -> str | None:
        """What has not been read yet, as a sentence; None when nothing is missing."""
        return None if self._quotas.synced.is_set() else "the ResourceQuotas have not been read yet"

    def lacks(self, namespace: str, asked: Mapping[str, int]) -> str | None:
        """What the quotas of a namespace do not leave, as a sentence; None when they will let the pod in."""
        lacking = (allowance.lacks(asked) for allowance in self._by_namespace.get(namespace, {}).values())
        return next((sentence for sentence in lacking if sentence is not None), None)

    def uncounted(self, namespace: str, manifest: pod.PodJson, request: Request) -> str | None:
        """Return why the quotas of a namespace cannot count what is requested, as a sentence; None if they can."""
        return resource_quota.uncounted(self._by_namespace.get(namespace, {}).values(), manifest, request)

    def bound(self, namespace: str) -> exclusive_gpus.ExclusiveBound | None:
        """Return the namespace's bound on exclusive GPUs, if it has one."""
        return exclusive_gpus.bound_of(namespace, self._by_namespace.get(namespace, {}).values())

    def _changed(self, change: objects.Delta) -> None:
        namespace, name = change.key.namespace, change.key.name
        allowance = change.new["allowance"] if change.new is not None else None
        if allowance is not None:
            self._by_namespace[namespace][name] = allowance
        elif self._by_namespace[namespace].pop(name, None) is not None and not self._by_namespace[namespace]:
            del self._by_namespace[namespace]


def kept(item: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a ResourceQuota; of one that counts only some of the pods that it is there."""
    metadata = item["metadata"]
    return {
        "metadata": {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata},
        "allowance": resource_quota.read(item),
    }
