"""A cluster of replicas, users and an agent, with one event at a time, and the laws checked after each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from gpushare import codec, contract
from gpushare.allocation import Isolation
from tests import builders
from tests.webhook.laws import faults as going_wrong
from tests.webhook.laws import replica, truth
from tests.webhook.laws.schedule import Option, Schedule
from tests.webhook.laws.simulated_api import GPUNODES, NODES, SimulatedApi
from tests.webhook.laws.users import Ask, Users
from tests.webhook.laws.virtual_loop import VirtualLoop
from tests.webhook.laws.wire import Network

CHAOS_SECONDS = 90.0
CALM_SECONDS = 240.0
MAX_STEPS = 4000


class LawBrokenError(AssertionError):
    """A violated law, with the log of the world."""


class World:
    """A simulated cluster. `run` runs it to its end; raises LawBrokenError."""

    def __init__(
        self,
        schedule: Schedule,
        asks: Sequence[Ask],
        *,
        gpus: int = 2,
        nodes: int = 1,
        faults: int = 6,
        isolations: tuple[Isolation, ...] = (Isolation.ARBITER,),
    ) -> None:
        self.api = SimulatedApi()
        self.network = Network(self.api)
        self.happened: list[str] = []
        self._schedule = schedule
        self._asks = asks
        self._faults_left = faults
        self._judged = 0
        self._calm_at: float | None = None
        self._loop = VirtualLoop(self._idle)
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._jobs: list[asyncio.Task[Any]] = []
        self._asked = False
        self._chaos_until = 0.0
        for number in range(nodes):
            self._add_node(f"node-{'abcd'[number]}", gpus, isolations)
        self.replicas: dict[str, replica.Replica] = {}
        self._users = Users(self.api, self.replicas, self._loop, self.happened)
        self._faults = going_wrong.Faults(self.api, self.network, self._users, self.replicas, self._loop)

    def run(self) -> None:
        complaints = _Complaints()
        logging.getLogger("webhook").addHandler(complaints)
        try:
            with replica.deterministic(self._loop):
                for number in (1, 2):
                    self._faults.start(f"replica-{number}")
                self.replicas["replica-1"].leads = True
                self._loop.run_until_complete(self._over)
                self._judge(self._loop.failures)
                self._judge(complaints.sentences)
                self._judge([str(job.exception()) for job in self._jobs if job.done() and job.exception()])
        finally:
            logging.getLogger("webhook").removeHandler(complaints)
            self._close()

    # --- one step ----------------------------------------------------------------------------------------------------

    def _idle(self, timer_seconds: float | None) -> None:
        if self._over.done():
            return
        try:
            self._step(timer_seconds)
        except Exception as error:
            self._over.set_exception(error)

    def _step(self, timer_seconds: float | None) -> None:
        if self.api.version != self._judged:
            self._judge(truth.broken_now(self.api, forgotten=self._faults.forgotten))
            self._judge(self._remembered_plans())
            self._judged = self.api.version
        options = [*self._going_on()]
        if timer_seconds is not None:
            # While messages are in flight, wait only a little: a longer pause is a separate fault.
            seconds = min(timer_seconds, 2.0) if options else timer_seconds
            options.append(Option("time", "time passes", lambda: self._loop.advance(seconds)))
        if not self._asked:
            if all(replica.store.missing() is None for replica in self.replicas.values()):
                self._ask_all()
            else:
                options[0].do()
            return
        if self._calm_at is None and all(job.done() for job in self._jobs) and self._loop.now > self._chaos_until:
            self._calm_down()
            return
        if self._calm_at is None:
            options += self._faults.now() if self._faults_left else ()
            chosen = self._schedule.pick(options)
        else:
            if self._loop.now - self._calm_at > CALM_SECONDS and not self.network.messages:
                self._judge(truth.broken_now(self.api))
                self._judge(truth.broken_at_rest(self.api, forgotten=self._faults.forgotten))
                self._over.set_result(None)
                return
            chosen = options[0]
        if chosen.kind not in ("go", "time"):
            self._faults_left -= 1
        self.happened.append(f"{self._loop.now:9.2f} {chosen.label}")
        if len(self.happened) > MAX_STEPS:
            raise LawBrokenError("it never comes to rest:\n" + "\n".join(self.happened[-60:]))
        chosen.do()

    def _judge(self, broken: Any) -> None:
        sentences = list(broken)
        if sentences:
            raise LawBrokenError("\n".join([*self.happened, "", *sentences]))

    def _remembered_plans(self) -> Iterator[str]:
        for node in truth.nodes(self.api):
            for entry in node.allocations:
                if entry.id in self._users.planned:
                    yield f"{entry.id} was planned by a dry run, and is in the ledger"

    def _going_on(self) -> Iterator[Option]:
        now = self._loop.now
        for message in self.network.messages:
            if message.held_until <= now:
                yield Option("go", str(message), lambda it=message: self.network.forward(it))  # type: ignore[misc]
        for watch in self.network.watches:
            count = self.network.pending_events(watch)
            if count and watch.silent_until <= self._loop.now:
                yield going_wrong.reporter(self.network, "go", watch, count)
        for point in self._users.points:
            if point.held_until <= now:
                yield Option("go", point.label, lambda it=point: self._users.let_pass(it, True))  # type: ignore[misc]

    def _ask_all(self) -> None:
        self._asked = True
        self._chaos_until = self._loop.now + CHAOS_SECONDS
        self._jobs = [self._loop.start("users", self._users.create(ask)) for ask in self._asks]

    def _calm_down(self) -> None:
        """Stop all faults: restart what is down, and elect a leader."""
        self._calm_at = self._loop.now
        self.happened.append(f"{self._loop.now:9.2f} from now on nothing goes wrong")
        self._loop.call_later(2 * going_wrong.ELECTION_SECONDS, self._faults.lead_alone)

    def _add_node(self, name: str, gpus: int, isolations: tuple[Isolation, ...]) -> None:
        labels = {contract.HOSTNAME_LABEL: name}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.api.create(NODES, {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": ready})
        geometry = builders.mig_geometry() if Isolation.MIG in isolations else ()
        self.api.create(
            GPUNODES, codec.to_document(builders.node(name, gpus=gpus, isolations=isolations, mig_geometry=geometry))
        )

    def _close(self) -> None:
        for owner in (*self.replicas, "users", ""):
            self._loop.end(owner)
        self._over = self._over if self._over.done() else self._loop.create_future()
        for _ in range(20):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        self._loop.close()


class _Complaints(logging.Handler):
    """A log handler that collects errors, which fail the test."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "has no GPU" in getattr(record, "err", ""):
            return  # where GPUs were taken out, that is the truth, and said
        self.sentences.append(
            f"logged: {record.getMessage()} {record.exc_info[1]!r}" if record.exc_info else record.getMessage()
        )
