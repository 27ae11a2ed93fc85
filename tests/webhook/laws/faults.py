"""Faults of a simulated world: messages, watches, replicas, clocks, GPUNodes, pods, and elections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpushare import pod
from gpushare.cluster import api_errors
from tests.webhook.laws import replica, truth
from tests.webhook.laws.schedule import Option
from tests.webhook.laws.simulated_api import GPUNODES, PODS, PROFILES, SimulatedApi
from tests.webhook.laws.users import Point, Users
from tests.webhook.laws.virtual_loop import VirtualLoop
from tests.webhook.laws.wire import Message, Network, Watch

RESTART_SECONDS = 5.0
ELECTION_SECONDS = 15.0
SLOW_SECONDS = 20.0  # less than a client waits
SILENT_SECONDS = 75.0  # longer than a reservation lasts


class Faults:
    """Faults of a world: `now` are those that are possible next, `forgotten` the GPUNodes that were ever deleted."""

    def __init__(
        self,
        api: SimulatedApi,
        network: Network,
        users: Users,
        replicas: dict[str, replica.Replica],
        loop: VirtualLoop,
    ) -> None:
        self.forgotten: set[str] = set()
        self._api = api
        self._network = network
        self._users = users
        self._replicas = replicas
        self._loop = loop

    def now(self) -> Iterator[Option]:
        for message in self._network.messages:
            yield Option("lose", f"LOST: {message}", lambda it=message: self._network.lose(it))  # type: ignore[misc]
        for point in self._users.points:
            if point.may_fail:
                yield Option("fail", f"FAILS: {point.label}", lambda it=point: self._users.let_pass(it, False))  # type: ignore[misc]
        for waits in (*self._users.points, *(message for message in self._network.messages if message.writes)):
            yield Option("slow", f"takes long: {waits}", lambda it=waits: self._hold_up(it))  # type: ignore[misc]
        for watch in self._network.watches:
            if watch.collection == PROFILES:
                continue  # there is none in these worlds
            if self._network.pending_events(watch) > 1:
                yield reporter(self._network, "late", watch, 1)
            label = f"the watch of {watch.sender} on {watch.collection} falls silent"
            yield Option("silence", label, lambda it=watch: self._silence(it))  # type: ignore[misc]
            for error in (api_errors.Unavailable("reset"), api_errors.Gone("too old", status=410)):
                label = f"watch of {watch.sender} on {watch.collection} ends: {error}"
                yield Option("break", label, lambda it=watch, e=error: self._network.end(it, e))  # type: ignore[misc]
        for process in self._replicas.values():
            if process.alive:
                yield Option("crash", f"CRASH of {process.name}", lambda it=process: self._crash(it))  # type: ignore[misc]
                if not process.leads:
                    yield Option("elect", f"{process.name} is elected", lambda it=process: self._elect(it))  # type: ignore[misc]
                for seconds in (3600.0, -3600.0):
                    label = f"the clock of {process.name} jumps by {seconds:g} s"
                    yield Option("jump", label, lambda it=process, s=seconds: self._jump(it, s))  # type: ignore[misc]
        for item in truth.living(self._api):
            where = pod.namespaced_name(item)
            yield Option("delete", f"{where} is deleted", lambda it=where: self._delete(it))  # type: ignore[misc]
            if truth.is_placed(item):
                yield Option("end", f"{where} ends", lambda it=where: self._end(it))  # type: ignore[misc]
        for document in self._api.all(GPUNODES):
            name = document["metadata"]["name"]
            yield Option("agent", f"the agent of {name} writes", lambda it=name: self._agent(it))  # type: ignore[misc]
            yield Option("forget", f"GPUNode {name} is deleted by hand", lambda it=name: self._forget(it))  # type: ignore[misc]
            yield Option("swap", f"{name} goes, and comes back with other GPUs", lambda it=name: self._swap(it))  # type: ignore[misc]
        yield Option("wait", "nothing moves for 12 s", lambda: self._loop.advance(12.0))

    def _hold_up(self, waits: Point | Message) -> None:
        waits.held_until = self._loop.now + SLOW_SECONDS
        self._loop.call_later(SLOW_SECONDS, lambda: None)

    def _silence(self, watch: Watch) -> None:
        watch.silent_until = self._loop.now + SILENT_SECONDS

    def _crash(self, process: replica.Replica) -> None:
        led = process.leads
        process.crash()
        self._loop.call_later(RESTART_SECONDS, self.start, process.name)
        if led:
            self._loop.call_later(ELECTION_SECONDS, self._elect_somebody)

    def start(self, name: str) -> None:
        if name not in self._replicas or not self._replicas[name].alive:
            self._replicas[name] = replica.Replica(name, self._network, self._loop)

    def _elect(self, process: replica.Replica) -> None:
        """Elect another leader, while the former one still believes that it leads."""
        for other in self._replicas.values():
            if other.leads:
                self._loop.call_later(ELECTION_SECONDS, self._depose, other)
        process.leads = True
        process.placer.wake()

    def _depose(self, other: replica.Replica) -> None:
        other.leads = False
        if not any(process.leads for process in self._replicas.values()):
            self._elect_somebody()

    def _elect_somebody(self) -> None:
        alive = [process for process in self._replicas.values() if process.alive]
        if alive and not any(process.leads for process in alive):
            self._elect(alive[0])

    def _jump(self, process: replica.Replica, seconds: float) -> None:
        process.wall_ahead += seconds
        process.placer.wake()

    def _delete(self, where: tuple[str, str]) -> None:
        self._api.delete(PODS, *where)

    def _end(self, where: tuple[str, str]) -> None:
        self._api.update(PODS, *where, status={"phase": "Succeeded"})

    def _agent(self, name: str) -> None:
        gpunode = self._api.find(GPUNODES, "", name)
        assert gpunode is not None
        status = {**gpunode["status"], "config": f"written at {self._loop.now:.0f}"}
        self._api.update(GPUNODES, "", name, status=status)

    def _forget(self, name: str) -> None:
        gone = self._api.delete(GPUNODES, "", name)
        self._recreate(name, gone["status"])

    def _swap(self, name: str) -> None:
        """Replace GPUs permanently; pods on the old ones keep their useless shares."""
        gone = self._api.delete(GPUNODES, "", name)
        gpus = [{**gpu, "uuid": f"{gpu['uuid']}-{self._api.version}"} for gpu in gone["status"]["gpus"]]
        self._recreate(name, {**gone["status"], "gpus": gpus})

    def _recreate(self, name: str, status: dict[str, Any]) -> None:
        self.forgotten.add(name)
        again = {"metadata": {"name": name}, "spec": {}, "status": status}
        self._loop.call_later(1.0, self._api.create, GPUNODES, again)  # as its agent does

    def lead_alone(self) -> None:
        leaders = [process for process in self._replicas.values() if process.leads]
        for extra in leaders[1:]:
            extra.leads = False
        self._elect_somebody()


def reporter(network: Network, kind: str, watch: Watch, count: int) -> Option:
    """Return a fault that lets a watch deliver its next changes."""
    label = f"{watch.sender} is told {count} changes of {watch.collection}"
    return Option(kind, label, lambda: network.tell(watch, count))
