"""Simulates pods that arrive and end, placed by the webhook's placement code; each end lets waiting pods try again."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

from gpushare.allocation import Allocation
from gpushare.gpu_capacity import Fragmentation
from gpushare.placement import Placement
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World

MOMENTS = 120  # most samples of the cluster's state
_TRIED = 100  # waiting pods that are tried when one ends, the oldest first


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that arrives; `duration_seconds` is None if it stays."""

    at_seconds: float
    duration_seconds: float | None
    asked: RequestingPod


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """The cluster after `arrived` arrivals."""

    at_seconds: float
    arrived: int
    running: int
    waiting: int
    request_percent: int
    memory_bytes: int
    fragmentation: Fragmentation


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedPod:
    """The outcome. `waited`: pods that had to wait; `waited_seconds`: of those that ran; `never`: still waiting."""

    moments: tuple[Moment, ...]
    arrived: int
    waited: int
    waited_seconds: float
    never: int
    total_percent: int
    total_bytes: int
    first_refusal: str  # why the first pod that waited did


def run(world: World, arrivals: Sequence[Arrival]) -> SimulatedPod:
    play = _Play(world)
    every = max(1, len(arrivals) // MOMENTS)
    moments = []
    for number, arrival in enumerate(arrivals, 1):
        play.until(arrival.at_seconds)
        play.arrive(arrival)
        if number % every == 0 or number == len(arrivals):
            moments.append(play.moment(arrival.at_seconds, number))
    gpus = [gpu for view in world.views.values() for gpu, _ in view.gpus()]
    return SimulatedPod(
        moments=tuple(moments),
        arrived=len(arrivals),
        waited=play.waited,
        waited_seconds=play.waited_seconds,
        never=len(play.waiting),
        total_percent=100 * len(gpus),
        total_bytes=sum(gpu.memory_bytes for gpu in gpus),
        first_refusal=play.first_refusal,
    )


class _Play:
    def __init__(self, world: World) -> None:
        self._world = world
        self._ends: list[tuple[float, int, Arrival, str, Allocation]] = []
        self._number = 0
        self.waiting: list[Arrival] = []
        self.running = 0
        self.waited = 0
        self.waited_seconds = 0.0
        self.first_refusal = ""

    def until(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            at, _, arrival, node, entry = heapq.heappop(self._ends)
            self._world.remove(arrival.asked.manifest, node, entry)
            self.running -= 1
            self._turns(at)

    def arrive(self, arrival: Arrival) -> None:
        refusal = self._place(arrival, arrival.at_seconds)
        if refusal:
            self.waited += 1
            self.first_refusal = self.first_refusal or refusal
            self.waiting.append(arrival)

    def moment(self, at: float, arrived: int) -> Moment:
        used = [use for view in self._world.views.values() for _, use in view.gpus()]
        return Moment(
            at,
            arrived,
            self.running,
            len(self.waiting),
            sum(use.request_percent for use in used),
            sum(use.memory_bytes for use in used),
            self._world.fragmentation(),
        )

    def _turns(self, now: float) -> None:
        kept = []
        for arrival in self.waiting[:_TRIED]:
            if self._place(arrival, now):
                kept.append(arrival)
            else:
                self.waited_seconds += now - arrival.at_seconds
        self.waiting = kept + self.waiting[_TRIED:]

    def _place(self, arrival: Arrival, now: float) -> str:
        """Place a pod; return the reason if it fits nowhere, else an empty text."""
        asked = arrival.asked
        answer = self._world.place(asked.manifest, asked.request)
        if not isinstance(answer, Placement):
            return str(answer)
        self._world.assign(asked.manifest, asked.request, answer)
        self.running += 1
        entry = self._world.views[answer.node].node.allocations[-1]
        if arrival.duration_seconds is not None:
            self._number += 1
            end = now + arrival.duration_seconds
            heapq.heappush(self._ends, (end, self._number, arrival, answer.node, entry))
        return ""
