"""What a container was given, asking the API server where the informers do not know yet.

A container may start before an informer has heard of its pod, or of its allocation. Then the API server is asked, by
one question for all who wait, and no more often than it can bear from every node. What it does not know is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.tenant import Missing, NotYet, StartingContainer, Tenant
from deviceplugin.host.identity import Container
from gpushare.cluster import api_errors
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

WAIT_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 0.25
STATUS_SECONDS: Final = 0.5

Pods = Callable[[], Iterable[PodJson]]
AskPods = Callable[[], Awaitable[Iterable[PodJson]]]
AskNode = Callable[[], Awaitable[GpuNode | None]]
Found = TypeVar("Found")
Find = Callable[[Iterable[PodJson], GpuNode | None], Found | Refusal | NotYet]


class Lookup:
    """Answers for all containers of the node.

    pods, node: as the informers have them; ask_pods, ask_node: as the API server has them now.
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
            # The kubelet writes a container's name into the status about a second after its start.
            Missing.CONTAINER: SingleFlight(self._remember_pods, clock, again_seconds=STATUS_SECONDS),
        }
        self._ask_pods = ask_pods
        self._ask_node = ask_node
        self._asked_pods: Iterable[PodJson] = ()
        self._asked_node: GpuNode | None = None

    async def tenant(self, container: Container) -> Tenant | Refusal:
        """The share of a container, or why it has none; within about WAIT_SECONDS."""
        return await self._answer(lambda pods, node: tenant.find(container, pods=pods, node=node))

    async def find_by_name(self, namespace: str, name: str, container: str) -> StartingContainer | Refusal:
        """The GPUs of a container that is about to start, or why it has none; likewise."""
        return await self._answer(
            lambda pods, node: tenant.find_by_name(namespace, name, container, pods=pods, node=node)
        )

    async def _answer(self, find: Find[Found]) -> Found | Refusal:
        not_yet = find(self._pods(), self._node())
        trouble = ", and the API server did not answer in time"
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while isinstance(not_yet, NotYet):
                    asked_for = not_yet.missing
                    try:
                        await self._questions[asked_for].answered()
                    except api_errors.ClusterError as error:
                        trouble = f", and the API server could not be asked: {error}"
                        continue
                    trouble = ""
                    not_yet = self._find_again(find)
                    # Of pods and allocations the API server knows all; a container's name may still come.
                    if isinstance(not_yet, NotYet) and not_yet.missing is asked_for is not Missing.CONTAINER:
                        break
        except TimeoutError:
            pass
        return Refusal(not_yet.reason + trouble) if isinstance(not_yet, NotYet) else not_yet

    def _find_again(self, find: Find[Found]) -> Found | Refusal | NotYet:
        # What was asked for last is at least as new as what the informers had when it was asked.
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
    """One question for all who ask it: never two at a time, never within `again_seconds` of the last."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._again_seconds = again_seconds
        self._asking = asyncio.Lock()
        self._begun = float("-inf")
        self._ended = float("-inf")
        self._error: api_errors.ClusterError | None = None  # of the last one

    async def answered(self) -> None:
        """Return once it was asked, and answered, after this call. Raises ClusterError, as all do who waited for it."""
        called = self._clock()
        async with self._asking:
            if self._begun >= called and self._ended >= self._begun:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                return
            await asyncio.sleep(max(0.0, self._begun + self._again_seconds - self._clock()))
            self._begun = self._clock()
            self._error = None
            try:
                await self._ask()
            except api_errors.ClusterError as error:
                self._error, self._ended = error, self._clock()
                raise
            self._ended = self._clock()
