"""One webhook process: the product's own parts, wired as the daemon wires them, on a simulated network."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from collections.abc import Iterator
from unittest import mock

from gpushare.cluster import events, informer
from tests.webhook.laws.virtual_loop import VirtualLoop
from tests.webhook.laws.wire import Network, SimulatedClient
from webhook import admission, metrics, placer, review
from webhook.controllers.allocation_controller import AllocationController
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.touched_nodes import TouchedNodes
from webhook.store import avoided_nodes, reservation
from webhook.store.api_store import ApiStore

LIFETIME_SECONDS = 60.0


class Replica:
    """A simulated webhook process. leads: whether it believes that it leads. wall_ahead: error of its wall clock, in
    seconds.
    """

    def __init__(self, name: str, network: Network, loop: VirtualLoop) -> None:
        self.name = name
        self.leads = False
        self.wall_ahead = 0.0
        self.alive = True
        self._loop = loop
        self._network = network
        self.client = SimulatedClient(network, name)
        self.client.seen_at = network.api.version
        measured = metrics.Metrics()
        self.store = ApiStore(
            self.client, measured, contention=avoided_nodes.Contention(name.encode()), clock=loop.time
        )
        reserving = reservation.Reservation(
            self.store,
            policy="fragmentation",
            lifetime_seconds=LIFETIME_SECONDS,
            clock=loop.time,
            wall_clock=self.wall,
        )
        self.admission = admission.Admission(self.store, reserving, measured, clock=loop.time)
        recorder = events.Recorder(
            self.client, controller="test", instance=name, clock=loop.time, wall_clock=self.wall
        )  # never run, so it writes no Events
        touched_nodes = TouchedNodes()
        self.placer = placer.Placer(
            self.store,
            touched_nodes,
            AllocationController(
                self.client,
                self.store,
                touched_nodes,
                recorder,
                measured,
                lifetime_seconds=LIFETIME_SECONDS,
                clock=self.reservations_clock,
            ),
            GatedPodScheduler(
                self.client, self.store, reserving, recorder, measured, clock=loop.time, wall_clock=self.wall
            ),
            leads=lambda: self.leads,
            clock=self.reservations_clock,
        )
        for daemon in (self.store.run(), self.placer.run()):
            loop.start(name, daemon)

    def wall(self) -> float:
        """Return Unix seconds by this machine's clock."""
        return 1_700_000_000.0 + self._loop.time() + self.wall_ahead

    def reservations_clock(self) -> float:
        """Return the time by which the placer expires reservations."""
        return self._loop.time()

    def ask(self, request: review.AdmissionRequest) -> asyncio.Task[review.ReviewResponse]:
        return self._loop.start(self.name, self.admission.answer(request))

    def crash(self) -> None:
        """Stop between two instructions; messages that were sent are still in flight."""
        self.alive = self.leads = False
        self.client.dead = True
        self._network.cut_off(self.name)
        self._loop.end(self.name)


@contextlib.contextmanager
def deterministic(loop: VirtualLoop) -> Iterator[None]:
    """Replace random IDs by a counter, and the machine's time by the loop's."""
    numbers = itertools.count(1)
    random.seed(0)
    clock = mock.Mock()
    clock.monotonic = clock.time = loop.time
    with (
        mock.patch.object(reservation, "new_id", side_effect=lambda: f"id{next(numbers):04d}"),
        mock.patch.object(placer, "time", clock),
        mock.patch.object(informer, "PORTION_SECONDS", math.inf),
    ):
        yield
