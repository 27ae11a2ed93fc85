"""The resizer: brings the shares in the ledger to what their pods request now, within the namespace's bounds.

It compares current states and does not depend on events: if this placer ends, the next one finds the same difference. A
waiting pod gets the reason, and an annotation with what it holds meanwhile, in case the ledger is lost.

The API server counts the amounts that pods were created with, and checks no quota when a share grows. So the ledger's
amounts for a namespace must not exceed its quotas: otherwise a user could resize a small share beyond them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import codec, contract, errors, quantity, resizing, resource_quota
from gpushare.allocation import GivenShare, peak
from gpushare.cluster import api_client, api_errors, events
from gpushare.cluster.object_store import Key
from gpushare.gpunode import GpuNode
from gpushare.request import Request
from webhook.controllers import pacing
from webhook.controllers.pacing import WriteBackoff
from webhook.controllers.pending_reasons import PendingReasonReporter
from webhook.controllers.resize_requests import ResizeRequest, ResizeRequests, exceeds, outcome, turn, within
from webhook.controllers.touched_nodes import Touched
from webhook.metrics import Metrics
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation, ledger_store

logger = logging.getLogger(__name__)

SEARCHED_AT_ONCE: Final = 16  # searched before the event loop runs other tasks


@dataclasses.dataclass(eq=False)
class Resizer:
    """Resizes shares, growing ones in the order of the queue. grew: called with a pod whose share has grown."""

    api: api_client.ApiClient
    store: ledger_store.LiveLedger
    recorder: events.Recorder
    metrics: Metrics
    _: dataclasses.KW_ONLY
    grew: Callable[[Pod], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._backoff = WriteBackoff()
        self._reporter = PendingReasonReporter(
            self.api, self.recorder, event=contract.EVENT_RESIZE_WAITS, clock=self.clock
        )
        self._quotas = Quotas(self.api, clock=self.clock)
        self._requests = ResizeRequests()
        self._waiting: dict[str, list[ResizeRequest]] = {}  # by node, as of the last round
        self._cleared: dict[str, str] = {}  # UID -> version of the pod whose annotations were removed

    async def reconcile(self, touched: Touched, pods: Mapping[Key, Pod]) -> float | None:
        """Write all possible steps; return in how many seconds a report is due, or None. pods: all pods."""
        for number, _ in enumerate(self._requests.search(touched)):
            if number % SEARCHED_AT_ONCE == 0:
                await pacing.let_others_run()
        allowed = [await self._within_range(resize_request) for resize_request in self._requests.all()]
        resize_requests = await self._quotas.check(allowed, self.store.stored())
        by_node: dict[str, list[ResizeRequest]] = {}
        for resize_request in resize_requests:
            by_node.setdefault(resize_request.node, []).append(resize_request)
        self._waiting = by_node
        stored = {node.name: node for node in self.store.stored() if node.name in by_node}
        reserved_for = backfill_reservation.waiting_requests(stored.values(), pods)
        waiting: list[tuple[Pod, str]] = []
        held: dict[str, str] = {}
        uids = (resize_request.pod.ref.uid for resize_request in resize_requests)
        self._cleared = {uid: self._cleared.get(uid, "") for uid in uids}
        # Nodes are independent, and the gated pods wait until all writes are done.
        nodes = await asyncio.gather(
            *(self._write(stored.get(name), here, reserved_for) for name, here in by_node.items())
        )
        answers = True
        for node, here in zip(nodes, by_node.values(), strict=True):
            for resize_request in here:
                now = outcome(node, resize_request) if node is not None else None
                if now is None:
                    continue  # the next round finds its new state
                if now[1]:
                    waiting.append((resize_request.pod, now[1]))
                    held[resize_request.pod.ref.uid] = codec.shares_text(now[0])
                elif answers:  # each unanswered call would delay the gated pods
                    answers = await self._finish(resize_request, now[0])
        self.metrics.resizes_waiting(len(waiting))
        self._reporter.forget_all_but(pod.ref.uid for pod, _ in waiting)
        return await self._reporter.report(waiting, held)

    def waiting_on(self, name: str, pods: Mapping[Key, Pod]) -> list[tuple[str, Request]]:
        """Return requests of pods that waited on the node in the last round and are still allowed, by allocation ID."""
        requests = []
        for resize_request in self._waiting.get(name, ()):
            ref = resize_request.pod.ref
            pod = pods.get(Key(ref.namespace, ref.name))
            if resize_request.request is None or pod is None or pod.ref.uid != ref.uid:
                continue
            if pod.request == resize_request.request:  # a changed request is not checked against quotas yet
                requests.append((resize_request.entry.id, resize_request.request))
        return requests

    async def _within_range(self, resize_request: ResizeRequest) -> ResizeRequest:
        try:
            return within(resize_request, await self.store.share_range(resize_request.pod.ref.namespace))
        except ledger_store.UnreachableError:
            return dataclasses.replace(resize_request, request=None, problem=_RANGE_UNREAD)

    async def _write(
        self, stored: GpuNode | None, resize_requests: Sequence[ResizeRequest], reserved_for: Mapping[str, Request]
    ) -> GpuNode | None:
        def change(node: GpuNode) -> GpuNode:
            return turn(node, resize_requests, reserved_for)

        if stored is None or change(stored) is stored:
            return stored
        return await ledger_store.try_commit(self.store, stored.name, change, "Could not resize shares")

    async def _finish(self, resize_request: ResizeRequest, shares: resizing.Shares) -> bool:
        """Record a complete resize, and remove annotations of a waiting pod; return whether the API server answers."""
        pod = resize_request.pod
        uid, now = pod.ref.uid, self.clock()
        if self._cleared[uid] == pod.version or self._backoff.wait_seconds(uid, now=now) > 0:
            return True  # our cache does not show the patch yet, or the API server rejects it
        if contract.REASON in pod.annotations or contract.HELD in pod.annotations:
            taken_off = {contract.REASON: None, contract.HELD: None}
            try:
                await self.api.patch(pod.path, {"metadata": {"uid": uid, "annotations": taken_off}})
            except api_errors.ClusterError as error:
                logger.info("Could not remove the annotations of a pod", extra={"pod": str(pod.ref), "err": str(error)})
                self._backoff.failed(uid, now=self.clock())
                return not isinstance(error, api_errors.Unavailable)  # a later round retries
            self._backoff.succeeded(uid)
        self._cleared[uid] = pod.version
        before = resize_request.entry.shares
        with contextlib.suppress(KeyError, errors.CodecError):
            before = codec.read_shares(pod.annotations[contract.HELD])
        if _amounts(before) != _amounts(shares):
            self.metrics.resized()
            if exceeds(shares, before):
                self.grew(pod)
            logger.info("Resized a share", extra={"pod": str(pod.ref), "node": resize_request.node})
            note = f"has {resizing.amounts(shares)} now, as its annotations request"
            self.recorder.record(pod.reference, contract.EVENT_RESIZED, note, action="Resize")
        return True


def _amounts(shares: resizing.Shares) -> list[tuple[int, int, int, int | None]]:
    return [(each.request_percent, each.limit_percent, each.memory_bytes, each.memory_limit_bytes) for each in shares]


KEPT_SECONDS: Final = 10.0  # quotas are not watched here, but read for pods that grow
COUNTED_AT_ONCE: Final = 64  # counted before the event loop runs other tasks
_RANGE_UNREAD: Final = "the annotations of its namespace could not be read: the placer retries"
_UNREAD: Final = "the ResourceQuotas of its namespace could not be read: the placer retries"

Amounts = Mapping[str, int]  # of our resources


class Quotas:
    """Reads quotas when they are needed, and caches them for a moment."""

    def __init__(self, api: api_client.ApiClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._read: dict[str, tuple[float, Amounts | None]] = {}  # by namespace
        self._holdings = Holdings()

    async def check(self, resize_requests: Sequence[ResizeRequest], nodes: Iterable[GpuNode]) -> list[ResizeRequest]:
        """Return the requests in the same order; those that exceed a quota get a problem instead of a request."""
        if not resize_requests:
            return []
        by_name = {node.name: node for node in nodes}
        held: dict[str, collections.Counter[str]] = {}
        checked = []
        for resize_request in resize_requests:
            more = _more(resize_request, by_name)
            asked = resize_request.request
            lent = resource_quota.lent_uncounted(asked) if asked is not None else None
            if more or lent:
                namespace = resize_request.entry.pod.namespace
                hard = await self._hard(namespace)
                if hard and namespace not in held:
                    held[namespace] = await self._holdings.sum(namespace, by_name)
                lacks = _UNREAD if hard is None else lacking(hard, held.get(namespace, {}), more)
                if not lacks and lent and hard and contract.RESOURCE_MEMORY in hard:
                    lacks = lent
                if lacks:
                    resize_request = dataclasses.replace(resize_request, request=None, problem=lacks)
                elif hard:
                    held[namespace].update(more)
            checked.append(resize_request)
        return checked

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
    smallest: dict[str, int] = {}
    for quota in quotas:
        hard = (quota.get("spec") or {}).get("hard") or {}
        for name in (contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY):
            text = hard.get(f"requests.{name}")
            if text is not None:
                amount = quantity.parse_bytes(str(text))
                smallest[name] = min(amount, smallest.get(name, amount))
    return smallest


class Holdings:
    """The amounts that the pods of each namespace hold, counted again only for nodes that have changed."""

    def __init__(self) -> None:
        self._nodes: dict[str, GpuNode] = {}
        self._sums: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

    async def sum(self, namespace: str, nodes: Mapping[str, GpuNode]) -> collections.Counter[str]:
        """Return a copy of the namespace's sums; `nodes`: all nodes by name."""
        changed = [name for name, node in nodes.items() if self._nodes.get(name) is not node]
        for number, name in enumerate((*(self._nodes.keys() - nodes.keys()), *changed), start=1):
            self._add(self._nodes.pop(name, None), -1)
            if (node := nodes.get(name)) is not None:
                self._add(node, 1)
                self._nodes[name] = node
            if number % COUNTED_AT_ONCE == 0:
                await pacing.let_others_run()
        return collections.Counter(self._sums.get(namespace, {}))

    def _add(self, node: GpuNode | None, sign: int) -> None:
        for entry in node.allocations if node is not None else ():
            if entry.is_backfill_reservation:
                continue
            held = self._sums[entry.pod.namespace]
            held.update({name: sign * amount for name, amount in _held_amounts(entry.shares).items()})
            if not any(held.values()):
                del self._sums[entry.pod.namespace]


def lacking(hard: Amounts, held: Amounts, more: Amounts) -> str:
    """Return what the quotas lack for `more`, as the rest of a sentence; empty if they allow it."""
    for name, amount in more.items():
        if amount > 0 and name in hard and held.get(name, 0) + amount > hard[name]:
            write = quantity.format_bytes if name == contract.RESOURCE_MEMORY else str
            left = write(max(0, hard[name] - held.get(name, 0)))
            return f"the ResourceQuota of its namespace leaves {left} of {name}, but {write(amount)} more are requested"
    return ""


def _more(resize_request: ResizeRequest, nodes: Mapping[str, GpuNode]) -> dict[str, int]:
    if resize_request.request is None or resize_request.node not in nodes:
        return {}
    try:
        wanted = _held_amounts(resizing.asked(resize_request.request, resize_request.entry, nodes[resize_request.node]))
    except errors.LedgerError:
        return {}
    held = _held_amounts(resize_request.entry.shares)
    return {name: wanted[name] - held[name] for name in wanted if wanted[name] > held[name]}


def _held_amounts(shares: Collection[GivenShare]) -> dict[str, int]:
    return {
        contract.RESOURCE_PERCENT: peak(shares, lambda share: share.request_percent * len(share.gpu_uuids)),
        contract.RESOURCE_MEMORY: peak(shares, lambda share: share.memory_bytes * len(share.gpu_uuids)),
    }
