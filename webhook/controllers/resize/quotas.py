"""Quotas: whether the ResourceQuotas of its namespace let a share grow.

The API server counts what pods were created with, and nobody asks it when one grows. So what the ledger says that the
pods of a namespace hold may not come to be more than its quotas allow: else whoever is held to a small share by a quota
would create one and then grow it.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors, quantity, resizing
from gpushare.allocation import GivenShare, peak
from gpushare.cluster import api_client, api_errors
from gpushare.gpunode import GpuNode
from webhook import event_loop
from webhook.controllers.resize.resize_requests import ResizeRequest

logger = logging.getLogger(__name__)

KEPT_SECONDS: Final = 10.0  # no event tells us of a quota: it is read when somebody asks for more
_RESOURCES: Final = (contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY)
NODES_AT_ONCE: Final = 64  # added up before others have their turn
_UNREAD: Final = "the ResourceQuotas of its namespace could not be read: that is tried again"

Amounts = Mapping[str, int]  # of our resources


class Quotas:
    """Reads quotas when they are needed, and remembers them for a moment."""

    def __init__(self, api: api_client.ApiClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._read: dict[str, tuple[float, Amounts | None]] = {}  # by namespace
        self._holdings = Holdings()

    async def judge(self, resize_requests: Sequence[ResizeRequest], nodes: Iterable[GpuNode]) -> list[ResizeRequest]:
        """The same requests in the same order; those that exceed a quota have a problem instead of a request."""
        if not resize_requests:
            return []
        by_name = {node.name: node for node in nodes}
        held: dict[str, collections.Counter[str]] = {}
        judged = []
        for resize_request in resize_requests:
            more = _more(resize_request, by_name)
            if more:
                namespace = resize_request.entry.pod.namespace
                hard = await self._hard(namespace)
                if hard and namespace not in held:
                    held[namespace] = await self._holdings.of(namespace, by_name)
                lacks = _UNREAD if hard is None else lacking(hard, held.get(namespace, {}), more)
                if lacks:
                    resize_request = dataclasses.replace(resize_request, request=None, problem=lacks)
                elif hard:
                    held[namespace].update(more)
            judged.append(resize_request)
        return judged

    async def _hard(self, namespace: str) -> Amounts | None:
        now = self._clock()
        self._read = {name: known for name, known in self._read.items() if now - known[0] < KEPT_SECONDS}
        if namespace not in self._read:
            try:
                quotas = await self._api.list(f"/api/v1/namespaces/{namespace}/resourcequotas", keep=api_client.whole)
                self._read[namespace] = now, least(quotas.items)
            except (api_errors.ClusterError, errors.QuantityError) as error:
                logger.warning("Could not read quotas", extra={"namespace": namespace, "err": str(error)})
                self._read[namespace] = now, None
        return self._read[namespace][1]


def least(quotas: Iterable[Mapping[str, Any]]) -> Amounts:
    """The least that any of them allows, of each of our resources that one speaks of. Raises QuantityError."""
    smallest: dict[str, int] = {}
    for quota in quotas:
        hard = (quota.get("spec") or {}).get("hard") or {}
        for name in _RESOURCES:
            text = hard.get(f"requests.{name}")
            if text is not None:
                amount = quantity.parse_bytes(str(text))
                smallest[name] = min(amount, smallest.get(name, amount))
    return smallest


class Holdings:
    """What the pods of each namespace hold: added up again only for nodes that have changed since somebody asked."""

    def __init__(self) -> None:
        self._nodes: dict[str, GpuNode] = {}
        self._sums: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

    async def of(self, namespace: str, nodes: Mapping[str, GpuNode]) -> collections.Counter[str]:
        """A copy; `nodes`: all there are now, by name."""
        changed = [name for name, node in nodes.items() if self._nodes.get(name) is not node]
        for number, name in enumerate((*(self._nodes.keys() - nodes.keys()), *changed), start=1):
            self._add(self._nodes.pop(name, None), -1)
            if (node := nodes.get(name)) is not None:
                self._add(node, 1)
                self._nodes[name] = node
            if number % NODES_AT_ONCE == 0:
                await event_loop.let_others_run()
        return collections.Counter(self._sums.get(namespace, {}))

    def _add(self, node: GpuNode | None, sign: int) -> None:
        for entry in node.allocations if node is not None else ():
            if entry.is_hold:
                continue
            held = self._sums[entry.pod.namespace]
            held.update({name: sign * amount for name, amount in _amounts(entry.shares).items()})
            if not any(held.values()):
                del self._sums[entry.pod.namespace]


def lacking(hard: Amounts, held: Amounts, more: Amounts) -> str:
    """What the quotas lack for `more`, as the rest of a sentence; empty if they allow it."""
    for name, amount in more.items():
        if amount > 0 and name in hard and held.get(name, 0) + amount > hard[name]:
            write = quantity.format_bytes if name == contract.RESOURCE_MEMORY else str
            left = write(max(0, hard[name] - held.get(name, 0)))
            return f"the ResourceQuota of its namespace leaves {left} of {name}, {write(amount)} more are requested"
    return ""


def _more(resize_request: ResizeRequest, nodes: Mapping[str, GpuNode]) -> dict[str, int]:
    """How much more than it holds it asks for; empty if of nothing."""
    if resize_request.request is None or resize_request.node not in nodes:
        return {}
    try:
        wanted = _amounts(resizing.asked(resize_request.request, resize_request.entry, nodes[resize_request.node]))
    except errors.LedgerError:
        return {}
    held = _amounts(resize_request.entry.shares)
    return {name: wanted[name] - held[name] for name in wanted if wanted[name] > held[name]}


def _amounts(shares: Collection[GivenShare]) -> dict[str, int]:
    return {
        contract.RESOURCE_PERCENT: peak(shares, lambda share: share.request_percent * len(share.gpu_uuids)),
        contract.RESOURCE_MEMORY: peak(shares, lambda share: share.memory_bytes * len(share.gpu_uuids)),
    }
