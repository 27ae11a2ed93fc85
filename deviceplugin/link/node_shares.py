"""The shares of this node: which container has which, and the running ones, as the arbiter last reported them.

A container may start before the informers have its pod or its allocation. Then the agent asks the API server, once for
all waiting processes, and at a rate that is harmless from every node. Containers that the API server does not know
either are refused. The memory use of running shares is read from their own pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from deviceplugin.arbiter import pages, tenant
from deviceplugin.arbiter.messages import USAGE_FIELDS, LeaseReport, LedgerMember, Overhead, RunningShareState
from deviceplugin.arbiter.scheduling.leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Holder, Missing, NotYet, StartingContainer, Tenant
from deviceplugin.host.kernel_process import Container
from gpushare.cluster import api_errors
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

WAIT_SECONDS: Final = 10.0
MIN_INTERVAL_SECONDS: Final = 0.25
STATUS_SECONDS: Final = 0.5

Found = TypeVar("Found")
Find = Callable[[Iterable[PodJson], GpuNode | None], Found | Refusal | NotYet]


@dataclasses.dataclass(eq=False)
class Lookup:
    """Share lookups, each within about WAIT_SECONDS. pods, node: the informers' state. ask_*: ask the API server.

    as_devices: returns the GPUNode as processes see it, where a MIG device is a GPU.
    """

    _: dataclasses.KW_ONLY
    pods: Callable[[], Iterable[PodJson]]
    node: Callable[[], GpuNode | None]
    ask_pods: Callable[[], Awaitable[Iterable[PodJson]]]
    ask_node: Callable[[], Awaitable[GpuNode | None]]
    as_devices: Callable[[GpuNode], GpuNode] = lambda node: node
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._questions: Mapping[Missing, SingleFlight] = {
            Missing.POD: SingleFlight(self._remember_pods, self.clock),
            Missing.ALLOCATION: SingleFlight(self._remember_node, self.clock),
            # The kubelet writes a container's id into the status about a second after its start.
            Missing.CONTAINER: SingleFlight(self._remember_pods, self.clock, min_interval_seconds=STATUS_SECONDS),
        }
        self._asked_pods: Iterable[PodJson] = ()
        self._asked_node: GpuNode | None = None

    async def tenant(self, container: Container) -> Tenant | Refusal:
        return await self._answer(lambda pods, node: tenant.find(container, pods=pods, node=self._as_devices(node)))

    async def find_by_name(self, namespace: str, name: str, container: str) -> StartingContainer | Refusal:
        """Return the GPUs of a container that is about to start, or the reason why it has none."""
        return await self._answer(
            lambda pods, node: tenant.find_by_name(namespace, name, container, pods=pods, node=node)
        )

    async def holder(self, pod_uid: str) -> Holder | Refusal:
        return await self._answer(
            lambda pods, node: tenant.find_holder(pod_uid, pods=pods, node=self._as_devices(node))
        )

    def _as_devices(self, node: GpuNode | None) -> GpuNode | None:
        return None if node is None else self.as_devices(node)

    async def _answer(self, find: Find[Found]) -> Found | Refusal:
        not_yet = find(self.pods(), self.node())
        problem = ", and the API server did not answer in time"
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while isinstance(not_yet, NotYet):
                    asked_for = not_yet.missing
                    try:
                        await self._questions[asked_for].wait_for_answer()
                    except api_errors.ClusterError as error:
                        problem = f", and the request to the API server failed: {error}"
                        continue
                    problem = ""
                    # The last answer is at least as new as the informers were when it was requested.
                    pods = (*self._asked_pods, *self.pods())
                    not_yet = find(pods, self.node())
                    if isinstance(not_yet, NotYet) and not_yet.missing is Missing.ALLOCATION:
                        not_yet = find(pods, self._asked_node)
                    # The API server knows every pod and allocation, but the container's status may still be missing.
                    if isinstance(not_yet, NotYet) and not_yet.missing is asked_for is not Missing.CONTAINER:
                        break
        except TimeoutError:
            pass
        return Refusal(not_yet.reason + problem) if isinstance(not_yet, NotYet) else not_yet

    async def _remember_pods(self) -> None:
        self._asked_pods = tuple(await self.ask_pods())

    async def _remember_node(self) -> None:
        self._asked_node = await self.ask_node()


@dataclasses.dataclass(eq=False)
class SingleFlight:
    """A request that concurrent callers share: one at a time, and at most one per `min_interval_seconds`."""

    ask: Callable[[], Awaitable[None]]
    clock: Callable[[], float]
    _: dataclasses.KW_ONLY
    min_interval_seconds: float = MIN_INTERVAL_SECONDS

    def __post_init__(self) -> None:
        self._asking = asyncio.Lock()
        self._begun = self._ended = float("-inf")
        self._error: api_errors.ClusterError | None = None  # of the last request

    async def wait_for_answer(self) -> None:
        """Wait for an answer to a request sent after this call. Raises ClusterError in all callers that wait for it."""
        called = self.clock()
        async with self._asking:
            if self._begun >= called and self._ended >= self._begun:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                return
            await asyncio.sleep(max(0.0, self._begun + self.min_interval_seconds - self.clock()))
            self._begun = self.clock()
            self._error = None
            try:
                await self.ask()
            except api_errors.ClusterError as error:
                self._error = error
                self._ended = self.clock()
                raise
            self._ended = self.clock()


class RunningShare:
    """A share with processes. `overheads`: as sent to the arbiter; None if it may not have them any more."""

    def __init__(self, state: RunningShareState, limits: pages.LimitsView, ledger: pages.Ledger) -> None:
        self.limits, self.ledger = limits, ledger
        self.update(state)

    def update(self, state: RunningShareState) -> None:
        self.tenant: Tenant = state.tenant
        self.members: Mapping[int, LedgerMember] = {member.slot: member for member in state.members}
        self.overheads: tuple[Overhead, ...] | None = None

    def used_bytes(self) -> tuple[int, ...]:
        """Return the processes' charges, by GPU in the order of the grants. Raises PagesError."""
        return self.ledger.used_bytes(self.limits.slot_count)

    def certain(self, slot: int, gpu: int) -> tuple[int, int]:
        """Return a process's certain bytes on a GPU, and its count of announced decreases. Raises PagesError."""
        return self.ledger.certain(slot, gpu) if slot < self.limits.certain_slot else (0, 0)

    def overhead_bytes(self, slot: int, gpu: int) -> int:
        """Return what a process holds on a GPU beyond its charges; 0 if the arbiter may not know it."""
        member = self.members.get(slot)
        for overhead in self.overheads or ():
            if member is not None and (overhead.pid, overhead.start_ticks) == (member.pid, member.start_ticks):
                return overhead.held_bytes[gpu]
        return 0

    def close(self) -> None:
        self.limits.close()
        self.ledger.close()


class Shares:
    """All shares of this node with processes."""

    def __init__(self) -> None:
        self._shares: dict[str, RunningShare] = {}
        self.lease_reports: tuple[LeaseReport, ...] = ()  # of the last report

    def all(self) -> tuple[RunningShare, ...]:
        return tuple(self._shares.values())

    def get(self, key: str) -> RunningShare | None:
        return self._shares.get(key)

    def uses(self) -> Iterator[ShareUse]:
        for share in self._shares.values():
            overheads = tuple(record.overhead_bytes for record in share.limits.read())
            yield ShareUse(share.tenant, share.used_bytes(), len(share.members), overheads)

    def limit_bytes(self) -> dict[str, int]:
        """Return the highest memory limit that each share's processes have on a GPU, by the share's key."""
        limits = {}
        for key, share in self._shares.items():
            with contextlib.suppress(pages.PagesError):
                limits[key] = max((record.memory_bytes for record in share.limits.read()), default=0)
        return limits

    def lease_usage(self) -> Iterator[LeaseUsage]:
        for turn in self.lease_reports:
            share = self._shares.get(turn.share)
            if share is not None:
                yield LeaseUsage(share.tenant, **{field: getattr(turn, field) for field in USAGE_FIELDS})

    def update(self, state: RunningShareState, descriptors: Sequence[int]) -> None:
        """Add or update a share. New shares come with descriptors of limits and ledger, which this object then owns."""
        key = state.tenant.key
        if not descriptors:
            self._shares[key].update(state)
            return
        self.remove(key)
        limits, ledger = descriptors
        count = len(state.tenant.grants)
        self._shares[key] = RunningShare(state, pages.LimitsView(limits, count), pages.Ledger(ledger, count))

    def remove(self, key: str) -> None:
        share = self._shares.pop(key, None)
        if share is not None:
            share.close()

    def close(self) -> None:
        for key in list(self._shares):
            self.remove(key)
