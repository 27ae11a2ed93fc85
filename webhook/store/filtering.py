"""Filtering: which nodes take a pod, by the pods and nodes that a store knows, whatever stands behind it."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from gpushare.gpunode import GpuNode
from gpushare.mix import Mix
from gpushare.nodefilters import SchedulerCache
from gpushare.placement import NodeView, Placement
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook.store.assumed_pods import AssumedPods
from webhook.store.chooser import AS_IT_IS, NOWHERE, Chooser, Views
from webhook.store.unconfirmed import UnconfirmedReservations

_NO_LABELS: Mapping[str, str] = types.MappingProxyType({})


class Filtering:
    """See `ledger_store.LedgerStore` for what these do. A store sets these in its constructor."""

    _cache: SchedulerCache
    _assumed: AssumedPods
    _chooser: Chooser
    _unclaimed: UnconfirmedReservations

    @property
    def mix(self) -> Mix:
        """What placement has learned last."""
        return self._chooser.mix

    def place(
        self,
        manifest: Mapping[str, Any],
        request: Request,
        *,
        policy: str,
        instead: Views = AS_IT_IS,
        unless: Mapping[str, str] = NOWHERE,
    ) -> Placement | Refusal:
        """Where the pod would go now."""
        return self._chooser.place(manifest, request, policy=policy, instead=instead, unless=unless)

    def place_on(
        self, node: GpuNode, manifest: Mapping[str, Any], request: Request, *, policy: str
    ) -> Placement | Refusal:
        """Which GPUs the pod would get on this node."""
        return self._chooser.place_on(NodeView.of(node), manifest, request, policy=policy)

    def unfit(self, manifest: Mapping[str, Any]) -> Callable[[str], str | None]:
        """Judge nodes for one pod."""
        return self._chooser.unfit(manifest)

    def avoids(self, manifest: Mapping[str, Any]) -> bool:
        """Whether some nodes are not for this pod that others like it can go to."""
        return bool(self._chooser.avoided(manifest).barred)

    def expect(self, manifest: Mapping[str, Any], name: str, allocation_id: str) -> Callable[[], None]:
        """Let the pod take room on the node until it is seen there, or the ledger no longer has its allocation."""
        return self._assumed.make(manifest, name, allocation_id)

    def premature(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> Refusal | None:
        """Why nothing is reserved for a pod before it is stored."""
        del manifest, request  # nothing of it matters here
        why = self._unclaimed.why_not(namespace)
        return None if why is None else Refusal(why, cause=Cause.UNCLAIMED)

    def hostname(self, name: str) -> str:
        """The value of the node's hostname label."""
        machine = self._cache.machine(name)
        return (machine.hostname if machine is not None else None) or name

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of the Node; empty if it is unknown."""
        machine = self._cache.machine(name)
        return machine.labels if machine is not None else _NO_LABELS
