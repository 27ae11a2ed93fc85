"""Finds the share of a container; asks the API server if the informers do not know it yet.

A container may start before the informers have its pod or its allocation. Then the agent asks the API server, once for
all waiting processes, and at a rate that is harmless from every node. Containers that the API server does not know
either are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.tenant import Missing, NotYet, StartingContainer, Tenant
from deviceplugin.host.kernel_process import Container
from gpushare.cluster import api_errors
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

WAIT_SECONDS: Final = 10.0
MIN_INTERVAL_SECONDS: Final = 0.25
STATUS_SECONDS: Final = 0.5

Pods = Callable[[], Iterable[PodJson]]
AskPods = Callable[[], Awaitable[Iterable[PodJson]]]
AskNode = Callable[[], Awaitable[GpuNode | None]]
Found = TypeVar("Found")
Find = Callable[[Iterable[PodJson], GpuNode | None], Found | Refusal | NotYet]


class Lookup:
    """Share lookups for all containers of the node.

    pods, node: return the informers' state. ask_pods, ask_node: ask the API server.
    """

    def __init__(
        self,
        *,
        pods: Pods,
        node: Callable[[], GpuNode | None],
        ask_pods: AskPods,
        ask_node: AskNode,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._node = node
        self._questions: Mapping[Missing, SingleFlight] = {
            Missing.POD: SingleFlight(self._remember_pods, clock),
            Missing.ALLOCATION: SingleFlight(self._remember_node, clock),
            # The kubelet writes a container's id into the status about a second after its start.
            Missing.CONTAINER: SingleFlight(self._remember_pods, clock, min_interval_seconds=STATUS_SECONDS),
        }
        self._ask_pods = ask_pods
        self._ask_node = ask_node
        self._asked_pods: Iterable[PodJson] = ()
        self._asked_node: GpuNode | None = None

    async def tenant(self, container: Container) -> Tenant | Refusal:
        """Return the container's share, or the reason why it has none, within about WAIT_SECONDS."""
        return await self._answer(lambda pods, node: tenant.find(container, pods=pods, node=node))

    async def find_by_name(self, namespace: str, name: str, container: str) -> StartingContainer | Refusal:
        """Return the GPUs of a container that is about to start, or the reason why it has none, within about
        WAIT_SECONDS.
        """
        return await self._answer(
            lambda pods, node: tenant.find_by_name(namespace, name, container, pods=pods, node=node)
        )

    async def _answer(self, find: Find[Found]) -> Found | Refusal:
        not_yet = find(self._pods(), self._node())
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
                    not_yet = self._find_again(find)
                    # The API server knows every pod and allocation, but the container's status may still be missing.
                    if isinstance(not_yet, NotYet) and not_yet.missing is asked_for is not Missing.CONTAINER:
                        break
        except TimeoutError:
            pass
        return Refusal(not_yet.reason + problem) if isinstance(not_yet, NotYet) else not_yet

    def _find_again(self, find: Find[Found]) -> Found | Refusal | NotYet:
        # The last answer is at least as new as the informers were when it was requested.
        pods = (*self._asked_pods, *self._pods())
        not_yet = find(pods, self._node())
        if isinstance(not_yet, NotYet) and not_yet.missing is Missing.ALLOCATION:
            return find(pods, self._asked_node)
        return not_yet

    async def _remember_pods(self) -> None:
        self._asked_pods = tuple(await self._ask_pods())

    async def _remember_node(self) -> None:
        self._asked_node = await self._ask_node()


class SingleFlight:
    """A request that concurrent callers share: one at a time, and at most one per `min_interval_seconds`."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        min_interval_seconds: float = MIN_INTERVAL_SECONDS,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._min_interval_seconds = min_interval_seconds
        self._asking = asyncio.Lock()
        self._begun = float("-inf")
        self._ended = float("-inf")
        self._error: api_errors.ClusterError | None = None  # of the last request

    async def wait_for_answer(self) -> None:
        """Wait for an answer to a request sent after this call. Raises ClusterError, in all callers that waited for
        it.
        """
        called = self._clock()
        async with self._asking:
            if self._begun >= called and self._ended >= self._begun:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                return
            await asyncio.sleep(max(0.0, self._begun + self._min_interval_seconds - self._clock()))
            self._begun = self._clock()
            self._error = None
            try:
                await self._ask()
            except api_errors.ClusterError as error:
                self._error, self._ended = error, self._clock()
                raise
            self._ended = self._clock()
