"""A cluster of replicas, users and an agent, in which one thing happens at a time, and the laws are judged after each."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jsonpatch

from gpushare import codec, contract, pod
from gpushare.cluster import errors
from gpushare.request import is_result_key
from tests import builders
from tests.webhook.laws import replica, truth
from tests.webhook.laws.schedule import Option, Schedule
from tests.webhook.laws.simulated_api import GPUNODES, NODES, PODS, SimulatedApi
from tests.webhook.laws.virtual_loop import VirtualLoop
from tests.webhook.laws.wire import Message, Network, Watch
from webhook import review

WEBHOOK_SECONDS = 10.0  # timeoutSeconds of the registration
REQUEST_SECONDS = 50.0  # the API server ends what takes longer, 60 s by default: less than a reservation lasts
RESTART_SECONDS = 5.0
ELECTION_SECONDS = 15.0
SLOW_SECONDS = 20.0  # less than a client waits
SILENT_SECONDS = 75.0  # longer than a reservation lasts
CHAOS_SECONDS = 90.0
CALM_SECONDS = 240.0
MOST_STEPS = 4000


class LawBrokenError(AssertionError):
    """With all that happened before."""


@dataclasses.dataclass(slots=True, eq=False)
class Point:
    """Where the API server waits in a user's request until the schedule lets it go on, or lets it fail."""

    label: str
    may_fail: bool
    waiter: asyncio.Future[bool]
    held_until: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A pod that a user creates. `changed`: another webhook changes it after ours, so that ours is asked again.

    copied: with all that we wrote into some pod that is there already.
    """

    manifest: dict[str, Any]
    dry_run: bool = False
    changed: bool = False
    copied: bool = False


class World:
    """`run` plays it to its end; raises LawBrokenError."""

    def __init__(
        self, schedule: Schedule, asks: Sequence[Ask], *, gpus: int = 2, nodes: int = 1, faults: int = 6
    ) -> None:
        self.api = SimulatedApi()
        self.network = Network(self.api)
        self.happened: list[str] = []
        self.planned: set[str] = set()  # ids that dry runs were told
        self._schedule = schedule
        self._asks = asks
        self._faults = faults
        self._points: list[Point] = []
        self._judged = 0
        self._forgotten: set[str] = set()
        self._calm_at: float | None = None
        self._loop = VirtualLoop(self._idle)
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._jobs: list[asyncio.Task[Any]] = []
        self._asked = False
        self._chaos_until = 0.0
        for number in range(nodes):
            self._add_node(f"node-{'abcd'[number]}", gpus)
        self.replicas: dict[str, replica.Replica] = {}

    def run(self) -> None:
        complaints = _Complaints()
        logging.getLogger("webhook").addHandler(complaints)
        try:
            with replica.deterministic(self._loop):
                for number in (1, 2):
                    self._start(f"replica-{number}")
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
            self._judge(truth.broken_now(self.api, forgotten=self._forgotten))
            self._judge(self._remembered_plans())
            self._judged = self.api.version
        options = [*self._going_on()]
        if timer_seconds is not None:
            # While something is on its way only a little: what is longer is a fault of its own.
            seconds = min(timer_seconds, 2.0) if options else timer_seconds
            options.append(Option("time", "time passes", lambda: self._loop.advance(seconds)))
        if not self._asked:
            if all(one.store.missing() is None for one in self.replicas.values()):
                self._ask_all()
            else:
                options[0].do()
            return
        if self._calm_at is None and all(job.done() for job in self._jobs) and self._loop.now > self._chaos_until:
            self._calm_down()
            return
        if self._calm_at is None:
            options += self._faults_now() if self._faults else ()
            chosen = self._schedule.pick(options)
        else:
            if self._loop.now - self._calm_at > CALM_SECONDS and not self.network.messages:
                self._judge(truth.broken_now(self.api))
                self._judge(truth.broken_at_rest(self.api, forgotten=self._forgotten))
                self._over.set_result(None)
                return
            chosen = options[0]
        if chosen.kind not in ("go", "time"):
            self._faults -= 1
        self.happened.append(f"{self._loop.now:9.2f} {chosen.label}")
        if len(self.happened) > MOST_STEPS:
            raise LawBrokenError("it never comes to rest:\n" + "\n".join(self.happened[-60:]))
        chosen.do()

    def _judge(self, broken: Any) -> None:
        sentences = list(broken)
        if sentences:
            raise LawBrokenError("\n".join([*self.happened, "", *sentences]))

    def _remembered_plans(self) -> Iterator[str]:
        for node in truth.nodes(self.api):
            for entry in node.allocations:
                if entry.id in self.planned:
                    yield f"{entry.id} was planned by a dry run, and is in the ledger"

    def _going_on(self) -> Iterator[Option]:
        now = self._loop.now
        for message in self.network.messages:
            if message.held_until <= now:
                yield Option("go", str(message), lambda it=message: self.network.forward(it))  # type: ignore[misc]
        for watch in self.network.watches:
            count = self.network.pending_events(watch)
            if count and watch.silent_until <= self._loop.now:
                yield self._telling("go", watch, count)
        for point in self._points:
            if point.held_until <= now:
                yield Option("go", point.label, lambda it=point: self._pass(it, True))  # type: ignore[misc]

    def _telling(self, kind: str, watch: Watch, count: int) -> Option:
        label = f"{watch.sender} is told {count} changes of {watch.collection}"
        return Option(kind, label, lambda: self.network.tell(watch, count))

    # --- what can go wrong -------------------------------------------------------------------------------------------

    def _faults_now(self) -> Iterator[Option]:
        for message in self.network.messages:
            yield Option("lose", f"LOST: {message}", lambda it=message: self.network.lose(it))  # type: ignore[misc]
        for point in self._points:
            if point.may_fail:
                yield Option("fail", f"FAILS: {point.label}", lambda it=point: self._pass(it, False))  # type: ignore[misc]
        for waits in (*self._points, *(one for one in self.network.messages if one.writes)):
            yield Option("slow", f"takes long: {waits}", lambda it=waits: self._hold_up(it))  # type: ignore[misc]
        for watch in self.network.watches:
            if self.network.pending_events(watch) > 1:
                yield self._telling("late", watch, 1)
            label = f"the watch of {watch.sender} on {watch.collection} falls silent"
            yield Option("silence", label, lambda it=watch: self._silence(it))  # type: ignore[misc]
            for error in (errors.Unavailable("reset"), errors.Gone("too old", status=410)):
                label = f"watch of {watch.sender} on {watch.collection} ends: {error}"
                yield Option("break", label, lambda it=watch, e=error: self.network.end(it, e))  # type: ignore[misc]
        for one in self.replicas.values():
            if one.alive:
                yield Option("crash", f"CRASH of {one.name}", lambda it=one: self._crash(it))  # type: ignore[misc]
                if not one.leads:
                    yield Option("elect", f"{one.name} is elected", lambda it=one: self._elect(it))  # type: ignore[misc]
                for seconds in (3600.0, -3600.0):
                    label = f"the clock of {one.name} jumps by {seconds:g} s"
                    yield Option("jump", label, lambda it=one, s=seconds: self._jump(it, s))  # type: ignore[misc]
        for item in truth.living(self.api):
            where = pod.namespaced_name(item)
            yield Option("delete", f"{where} is deleted", lambda it=where: self._delete(it))  # type: ignore[misc]
            if truth.is_placed(item):
                yield Option("end", f"{where} ends", lambda it=where: self._end(it))  # type: ignore[misc]
        for document in self.api.all(GPUNODES):
            name = document["metadata"]["name"]
            yield Option("agent", f"the agent of {name} writes", lambda it=name: self._agent(it))  # type: ignore[misc]
            yield Option("forget", f"GPUNode {name} is deleted by hand", lambda it=name: self._forget(it))  # type: ignore[misc]
            yield Option("swap", f"{name} goes, and comes back with other GPUs", lambda it=name: self._swap(it))  # type: ignore[misc]
        yield Option("wait", "nothing moves for 12 s", lambda: self._loop.advance(12.0))

    def _ask_all(self) -> None:
        self._asked = True
        self._chaos_until = self._loop.now + CHAOS_SECONDS
        self._jobs = [self._loop.start("users", self._create(ask)) for ask in self._asks]

    def _hold_up(self, waits: Point | Message) -> None:
        waits.held_until = self._loop.now + SLOW_SECONDS
        self._loop.call_later(SLOW_SECONDS, lambda: None)

    def _silence(self, watch: Watch) -> None:
        watch.silent_until = self._loop.now + SILENT_SECONDS

    def _crash(self, one: replica.Replica) -> None:
        led = one.leads
        one.crash()
        self._loop.call_later(RESTART_SECONDS, self._start, one.name)
        if led:
            self._loop.call_later(ELECTION_SECONDS, self._elect_somebody)

    def _start(self, name: str) -> None:
        if name not in self.replicas or not self.replicas[name].alive:
            self.replicas[name] = replica.Replica(name, self.network, self._loop)

    def _elect(self, one: replica.Replica) -> None:
        """The one that led goes on believing that it does for a while, whatever it was told."""
        for other in self.replicas.values():
            if other.leads:
                self._loop.call_later(ELECTION_SECONDS, self._depose, other)
        one.leads = True
        one.placer.wake()

    def _depose(self, other: replica.Replica) -> None:
        other.leads = False
        if not any(one.leads for one in self.replicas.values()):
            self._elect_somebody()

    def _elect_somebody(self) -> None:
        alive = [one for one in self.replicas.values() if one.alive]
        if alive and not any(one.leads for one in alive):
            self._elect(alive[0])

    def _jump(self, one: replica.Replica, seconds: float) -> None:
        one.wall_ahead += seconds
        one.placer.wake()

    def _delete(self, where: tuple[str, str]) -> None:
        self.api.delete(PODS, *where)

    def _end(self, where: tuple[str, str]) -> None:
        self.api.update(PODS, *where, status={"phase": "Succeeded"})

    def _agent(self, name: str) -> None:
        found = self.api.find(GPUNODES, "", name)
        assert found is not None
        status = {**found["status"], "config": f"written at {self._loop.now:.0f}"}
        self.api.update(GPUNODES, "", name, status=status)

    def _forget(self, name: str) -> None:
        gone = self.api.delete(GPUNODES, "", name)
        self._make_anew(name, gone["status"])

    def _swap(self, name: str) -> None:
        """The old ones are gone for good: who was given one of them has to live with that."""
        gone = self.api.delete(GPUNODES, "", name)
        cards = [{**card, "uuid": f"{card['uuid']}-{self.api.version}"} for card in gone["status"]["gpus"]]
        self._make_anew(name, {**gone["status"], "gpus": cards})

    def _make_anew(self, name: str, status: dict[str, Any]) -> None:
        self._forgotten.add(name)
        anew = {"metadata": {"name": name}, "spec": {}, "status": status}
        self._loop.call_later(1.0, self.api.create, GPUNODES, anew)  # as its agent does

    def _calm_down(self) -> None:
        """No more faults: whoever is down comes back, and in the end one leads."""
        self._calm_at = self._loop.now
        self.happened.append(f"{self._loop.now:9.2f} from now on nothing goes wrong")
        self._loop.call_later(2 * ELECTION_SECONDS, self._lead_alone)

    def _lead_alone(self) -> None:
        leaders = [one for one in self.replicas.values() if one.leads]
        for extra in leaders[1:]:
            extra.leads = False
        self._elect_somebody()

    # --- the API server's side of a user's request -------------------------------------------------------------------

    async def _create(self, ask: Ask) -> None:
        manifest = copy.deepcopy(ask.manifest)
        deadline = self._loop.now + REQUEST_SECONDS
        name = manifest["metadata"].get("name") or manifest["metadata"]["generateName"]
        if ask.copied and await self._point(f"{name} is copied", may_fail=False):
            self._copy_another(manifest)
        for turn in range(2 if ask.changed else 1):
            answer = await self._review(manifest, ask, f"{name}, turn {turn + 1}")
            if answer is None or not answer.allowed:
                return
            manifest = jsonpatch.apply_patch(manifest, list(answer.patch))
            if ask.dry_run:
                self.planned.add(pod.annotations_of(manifest).get(contract.ALLOCATION, ""))
                return
        # A quota, another webhook, a name that is taken: what comes between the webhook's answer and the store.
        if not await self._point(f"{name} is stored", may_fail=True) or self._loop.now > deadline:
            return
        moment = datetime.datetime.fromtimestamp(self._loop.now, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            self.api.create(PODS, manifest, creationTimestamp=moment)
        except errors.AlreadyExists:
            return

    def _copy_another(self, manifest: dict[str, Any]) -> None:
        for other in truth.living(self.api):
            if pod.annotations_of(other).keys() >= {contract.ALLOCATION}:
                results = {key: value for key, value in pod.annotations_of(other).items() if is_result_key(key)}
                manifest["metadata"]["annotations"].update(results)
                return

    async def _review(self, manifest: dict[str, Any], ask: Ask, what: str) -> review.Answer | None:
        if not await self._point(f"review of {what} arrives", may_fail=True):
            return None
        alive = [one for one in self.replicas.values() if one.alive and one.store.missing() is None]
        if not alive:
            return None
        chosen = alive[len(self.happened) % len(alive)]
        request: review.AdmissionRequest = {
            "uid": what,
            "operation": "CREATE",
            "namespace": manifest["metadata"]["namespace"],
            "dryRun": ask.dry_run,
            "object": json.loads(json.dumps(manifest)),
        }
        try:
            async with asyncio.timeout(WEBHOOK_SECONDS):
                answer = await asyncio.shield(chosen.ask(request))
                arrived = await self._point(
                    f"{chosen.name}'s answer to {what} arrives: {answer.outcome}", may_fail=True
                )
        except (TimeoutError, asyncio.CancelledError):
            return None
        return answer if arrived and chosen.alive else None

    async def _point(self, label: str, *, may_fail: bool) -> bool:
        point = Point(label, may_fail, self._loop.create_future())
        self._points.append(point)
        try:
            return await point.waiter
        finally:
            if point in self._points:
                self._points.remove(point)

    def _pass(self, point: Point, well: bool) -> None:
        self._points.remove(point)
        if not point.waiter.done():
            point.waiter.set_result(well)

    def _add_node(self, name: str, gpus: int) -> None:
        labels = {contract.HOSTNAME_LABEL: name}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.api.create(NODES, {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": ready})
        self.api.create(GPUNODES, codec.to_document(builders.node(name, gpus=gpus)))

    def _close(self) -> None:
        for owner in (*self.replicas, "users", ""):
            self._loop.end(owner)
        self._over = self._over if self._over.done() else self._loop.create_future()
        for _ in range(20):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        self._loop.close()


class _Complaints(logging.Handler):
    """An error in the log is an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "has no GPU" in getattr(record, "err", ""):
            return  # where GPUs were taken out, that is the truth, and said
        self.sentences.append(
            f"logged: {record.getMessage()} {record.exc_info[1]!r}" if record.exc_info else record.getMessage()
        )
