"""Resize requests: pods with a share that request another amount, in the order of the queue. Pure.

A user may change `request`, `limit` and `memory` of a placed pod. Unchanged annotations request exactly what the pod
was given, so they never cause a write.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpushare import contract, errors, resizing
from gpushare.allocation import Allocation, GivenShare
from gpushare.gpunode import GpuNode
from gpushare.request import Request
from gpushare.share_range import ShareRange
from webhook.controllers import queue
from webhook.controllers.touched_nodes import Touched
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation

# The scheduler needs room for the pod as it was created, and the agent offers freed amounts only for pods on its node.
# If another pod got them first, each of the two could keep the other from being bound.
NOT_BOUND: Final = "it is not bound to its node yet, where the scheduler still needs room for its original request"


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeRequest:
    """A pod with its current request and allocation. changes: whether it asks for other amounts than it has.

    problem: why the request is invalid.
    """

    pod: Pod
    node: str
    entry: Allocation
    request: Request | None = None
    problem: str = ""
    changes: bool = True


class ResizeRequests:
    """The resize requests of all nodes, found again only on nodes that have changed, and the pods without one."""

    def __init__(self) -> None:
        self._found: dict[str, list[ResizeRequest]] = {}  # by node
        # node -> UID -> the state in which the pod had what it requests
        self._satisfied: dict[str, dict[str, tuple[object, ...]]] = {}

    def find(self, nodes: Iterable[GpuNode], pods: Iterable[Pod]) -> list[ResizeRequest]:
        nodes = tuple(nodes)
        names = self._satisfied.keys() | {node.name for node in nodes}
        for _ in self.search(Touched(nodes, tuple(pods), frozenset(names))):
            pass
        return self.all()

    def search(self, touched: Touched) -> Iterator[None]:
        """Search the touched nodes, one per step: the first search of a large cluster takes seconds."""
        by_uid = {pod.ref.uid: pod for pod in touched.pods}
        nodes = {node.name: node for node in touched.nodes}
        for name in touched.names:
            self._found.pop(name, None)
            before = self._satisfied.pop(name, {})
            if name in nodes:
                self._search(nodes[name], by_uid, before)
                yield

    def all(self) -> list[ResizeRequest]:
        """Return the resize requests in the order of the queue, also satisfied ones whose annotations say otherwise."""
        return sorted(
            (resize_request for of_node in self._found.values() for resize_request in of_node),
            key=lambda waiting: queue.order(waiting.pod),
        )

    def _search(self, node: GpuNode, by_uid: Mapping[str, Pod], known: Mapping[str, tuple[object, ...]]) -> None:
        requests, satisfied = [], dict[str, tuple[object, ...]]()
        gpus = tuple((gpu.uuid, gpu.memory_bytes) for gpu in node.gpus)
        for entry in node.allocations:
            pod = by_uid.get(entry.pod.uid)
            if pod is None or not entry.pod.uid or entry.is_backfill_reservation:
                continue
            state = pod.version, entry.shares, gpus
            resize_request = None if known.get(entry.pod.uid) == state else _resize_request(pod, node, entry)
            if resize_request is None:
                satisfied[entry.pod.uid] = state
            else:
                requests.append(resize_request)
        self._satisfied[node.name] = satisfied
        if requests:
            self._found[node.name] = requests


def within(resize_request: ResizeRequest, allowed: ShareRange) -> ResizeRequest:
    """Return the resize request; with a problem instead of a request if it asks for shares outside of the range."""
    excess = allowed.excess(resize_request.request) if resize_request.request is not None else None
    if excess is None or not resize_request.changes:
        return resize_request
    return dataclasses.replace(resize_request, request=None, problem=excess)


def turn(node: GpuNode, resize_requests: Sequence[ResizeRequest], asked: Mapping[str, Request]) -> GpuNode:
    """Return the node after a step of each request, in their order; the very same node if no step is possible.

    An invalid request makes no step, and a shrink that has begun for it is undone.

    asked: requests, by UID, of pods with backfill reservations. Freed capacity goes to those first; growing shares take
    what is left.
    """
    entries = {entry.id: entry for entry in node.allocations}
    before = node
    for resize_request in resize_requests:
        if resize_request.request is None and resize_request.entry.id in entries:
            kept = tuple(
                dataclasses.replace(share, shrink_to_bytes=None) for share in entries[resize_request.entry.id].shares
            )
            node = resizing.step(node, resize_request.entry.id, kept).node
    steps = [
        (resize_request.entry.id, resize_request.request)
        for resize_request in resize_requests
        if resize_request.request is not None and resize_request.entry.id in entries
    ]
    larger = set()
    for identity, request in steps:
        with contextlib.suppress(errors.LedgerError):
            if exceeds(resizing.asked(request, entries[identity], node), entries[identity].shares):
                larger.add(identity)
    after = resizing.step_all(node, [step for step in steps if step[0] not in larger])
    after = backfill_reservation.grown(after, asked) if after is not before else after
    for _ in larger:  # a share that grows in compute may give up memory, which one ahead of it waits for
        grown = resizing.step_all(after, [step for step in steps if step[0] in larger])
        if grown is after:
            break
        after = backfill_reservation.grown(grown, asked)
    return after


def outcome(node: GpuNode, resize_request: ResizeRequest) -> tuple[tuple[GivenShare, ...], str] | None:
    """Return the shares and what the request waits for, empty if satisfied; None with no share or a step due."""
    entry = next((allocation for allocation in node.allocations if allocation.id == resize_request.entry.id), None)
    if entry is None:
        return None
    waits_for = resize_request.problem
    if resize_request.request is not None:
        try:
            step = resizing.step(node, entry.id, resizing.asked(resize_request.request, entry, node))
        except errors.LedgerError as error:
            waits_for = str(error)
        else:
            if step.node is not node:
                return None
            waits_for = step.waits_for
    return entry.shares, f"{resizing.WAITING}{waits_for}" if waits_for else ""


def _resize_request(pod: Pod, node: GpuNode, entry: Allocation) -> ResizeRequest | None:
    if pod.allocation_id != entry.id or pod.has_ended or pod.leaves or pod.is_gated:
        return None
    if contract.HELD not in pod.annotations and resizing.missing(entry, node):
        return None  # the node reports a missing GPU; these pods, which may be many, may not want a resize
    if isinstance(pod.request, str):
        return ResizeRequest(pod, node.name, entry, problem=pod.request)
    try:
        wanted = resizing.asked(pod.request, entry, node)
    except errors.GpushareError as error:
        return ResizeRequest(pod, node.name, entry, problem=str(error))
    if not pod.node and exceeds(entry.shares, wanted):
        return ResizeRequest(pod, node.name, entry, problem=NOT_BOUND)
    if wanted == entry.shares and contract.REASON not in pod.annotations and contract.HELD not in pod.annotations:
        return None
    return ResizeRequest(pod, node.name, entry, pod.request, changes=wanted != entry.shares)


def exceeds(shares: resizing.Shares, others: resizing.Shares) -> bool:
    """Whether one of the shares has more compute or memory than the other one of the same container."""
    return any(
        share.request_percent > other.request_percent or share.memory_bytes > other.memory_bytes
        for share, other in zip(shares, others, strict=False)
    )
