"""A law: the kubelet never refuses a pod that the ledger has placed on healthy GPUs.

Agent, kubelet and scheduler learn of changes late, each at a different time. Three things are assumed. Every message
arrives within `LATE_SECONDS` and in order. The agent's report about a GPU reaches the kubelet (by a socket) before the
webhook places a pod by it (through the API server). And a pod reaches the node after the agent has learned of its
share, which was in the ledger long before.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Sequence

import pytest

from deviceplugin.kubelet import plugin_service, share_answers
from deviceplugin.state import advertisement
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.pod import PodJson
from tests import builders
from tests.deviceplugin.kubelet.device_manager import DeviceManager, UnexpectedAdmissionError

pytestmark = pytest.mark.slow

PERCENT, IDLE = advertisement.COUNTERS
LATE_SECONDS = 2
STEPS = 400


@dataclasses.dataclass(slots=True)
class Pod:
    """A pod with a share. counts: the requested amount; given: the share's present amount, which may be smaller."""

    name: str
    gpu: str
    counts: int
    given: int
    known_at: int = 0  # when the agent learns of it
    is_bound: bool = False
    is_admitted: bool = False

    @property
    def needs(self) -> dict[str, int]:
        """The requested devices, by resource."""
        return {PERCENT: self.counts, IDLE: 0 if self.counts else 1}

    @property
    def manifest(self) -> PodJson:
        """The pod as the API server returns it."""
        limits = {name: str(amount) for name, amount in self.needs.items() if amount}
        metadata = {
            "namespace": "ml",
            "name": self.name,
            "uid": self.name,
            "annotations": {contract.ALLOCATION: self.name},
        }
        return {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The agent's view of the cluster."""

    node: GpuNode
    pods: tuple[PodJson, ...]


class Node:
    """A node with its agent, kubelet and scheduler, and the ledger. now: seconds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0
        self.gpus: tuple[Gpu, ...] = builders.node(gpus=self.chance.randint(1, 4)).gpus
        self.pods: list[Pod] = []
        self.names = itertools.count()
        self.kubelets = {name: self._kubelet(name) for name in advertisement.COUNTERS}
        self.given: dict[str, set[str]] = {name: set() for name in advertisement.COUNTERS}
        self.seen: tuple[Gpu, ...] = self.gpus
        self.views: list[tuple[int, View]] = []  # with the arrival times at the agent
        self.view: View | None = View(GpuNode("n"), ())  # None until one has arrived
        self.lists: list[
            tuple[int, tuple[tuple[Gpu, ...], bool, advertisement.Advertisement]]
        ] = []  # pending lists for the kubelet
        self.list_gpus: tuple[Gpu, ...] = ()  # when the kubelet's present list was built
        self.was_known = True  # whether the ledger was known when that list was built
        self.statuses: list[tuple[int, dict[str, int]]] = []  # pending node statuses for the scheduler
        self.scheduler: dict[str, int] = {}
        self.is_away = True  # the kubelet
        self.is_starting = False  # the kubelet is starting, so the agent lists additional devices
        self.refused: list[str] = []
        self.admitted = 0
        self.restart_agent()
        self.restart_kubelet()

    def _kubelet(self, resource: str) -> DeviceManager:
        answers = share_answers.ShareAnswers(
            share_answers.Mounts(*map(share_answers.Path, "abc")),
            allocated=lambda name, ids: self.given[name].update(ids),
        )

        def allocate(device_ids: list[str]) -> None:
            answers.allocate(resource, device_ids)
            if self.chance.random() < 0.5:
                self.receive_lists(at_once=True)

        return DeviceManager(self.chance, allocate)

    # -- events in the cluster

    def place(self) -> None:
        """Let the webhook place a share on a GPU that the agent reports as healthy and that has room."""
        gpu = self.chance.choice(self.list_gpus)
        free = 100 - sum(pod.given for pod in self.pods if pod.gpu == gpu.uuid)
        amount = self.chance.choice((0, 1, 10, 33, 50, 100))
        if gpu.healthy and gpu.pending_mode is None and amount <= free:
            self.pods.append(Pod(f"p{next(self.names)}", gpu.uuid, amount, amount))
            self.pods[-1].known_at = self._publish_ledger()

    def resize(self) -> None:
        """Resize a share within the room on its GPU."""
        bound = [pod for pod in self.pods if pod.is_bound and pod.counts]
        if bound:
            pod = self.chance.choice(bound)
            free = 100 - sum(
                manifest.given for manifest in self.pods if manifest.gpu == pod.gpu and manifest is not pod
            )
            pod.given = self.chance.randint(1, free)
            self._publish_ledger()

    def delete(self) -> None:
        """Delete a pod and its share."""
        if self.pods:
            pod = self.chance.choice(self.pods)
            self.pods.remove(pod)
            self._publish_ledger()

    def change(self) -> None:
        """Change a GPU's health or pending mode."""
        which = self.chance.randrange(len(self.gpus))
        gpu = self.gpus[which]
        pending = None if gpu.pending_mode else Mode.EXCLUSIVE
        changed = dataclasses.replace(
            gpu, **self.chance.choice(({"healthy": not gpu.healthy}, {"pending_mode": pending}))
        )
        self.gpus = (*self.gpus[:which], changed, *self.gpus[which + 1 :])

    def bind(self) -> None:
        """Let the scheduler bind a pod if there is room according to its last known node status."""
        waiting = [pod for pod in self.pods if not pod.is_bound and pod.known_at <= self.now]
        if waiting:
            pod = self.chance.choice(waiting)
            for name, needed in pod.needs.items():
                requested = sum(pod.needs[name] for pod in self.pods if pod.is_bound)
                if needed and requested + needed > self.scheduler.get(name, 0):
                    return
            pod.is_bound = True
            self._publish_ledger()

    def admit(self) -> None:
        """Let the kubelet admit a bound pod."""
        waiting = [pod for pod in self.pods if pod.is_bound and not pod.is_admitted]
        if waiting and not self.is_away:
            pod = self.chance.choice(waiting)
            self._forget()
            self._admit(pod)

    # -- restarts

    def restart_kubelet(self) -> None:
        """Stop or start the kubelet.

        A started kubelet gets the list again. It admits the new pods, and again those without a running container,
        before it forgets ended pods.
        """
        self.lists.clear()
        self.is_away = not self.is_away
        if self.is_away:
            return
        self.is_starting = True
        self.deliver_list(self._list())
        for pod in self.pods:
            if pod.is_bound and (not pod.is_admitted or self.chance.random() < 0.5):
                self._admit(pod)
        self.is_starting = self.chance.random() < 0.5  # whether it still gets additional devices

    def restart_agent(self) -> None:
        """Restart the agent: it forgets everything, reads driver and kubelet, and sends a list; the API server may
        answer late.

        Between two agents no device is healthy to the kubelet, so it allocates nothing before the second agent's list.
        """
        self.allocatable_units = advertisement.DelayedDecrease(self._allocatable, clock=lambda: self.now)
        self.removals = {name: plugin_service.GradualRemoval(lambda: self.now) for name in advertisement.COUNTERS}
        self.views.clear()
        self.view, self.seen = None, self.gpus
        self.ask_kubelet()
        if self.chance.random() < 0.5:
            self.view = self._cluster()
        else:
            self._publish_ledger()
        self.lists.clear()
        if not self.is_away:
            self.deliver_list(self._list())

    def _allocatable(self, gpus: Iterable[Gpu]) -> advertisement.Allocatable:
        if self.view is None:
            return advertisement.while_unknown(gpus, self.given)
        return advertisement.allocatable(gpus, self.view.node, self.view.pods)

    # -- messages

    def ask_kubelet(self) -> None:
        """Let the agent ask the kubelet which devices are held."""
        self.given = {name: set().union(*kubelet.held.values()) for name, kubelet in self.kubelets.items()}

    def refresh(self) -> None:
        """Let the agent read its GPUs and send a list."""
        self.seen = self.gpus
        self.send_list()

    def send_list(self) -> None:
        """Send a list to the kubelet."""
        self.lists.append((self._arrival(self.lists), self._list()))

    def receive_lists(self, *, at_once: bool = False) -> None:
        """Deliver the newest list that has arrived, or all pending ones if `at_once`; the node's status follows
        later.
        """
        now = self.now + (LATE_SECONDS if at_once else 0)
        come = [message for at, message in self.lists if at <= now]
        if come and not self.is_away:
            self.lists = [entry for entry in self.lists if entry[0] > now]
            self.deliver_list(come[-1])

    def deliver_list(self, message: tuple[tuple[Gpu, ...], bool, advertisement.Advertisement]) -> None:
        """Deliver a list, and write the node's status."""
        self.list_gpus, self.was_known, devices = message
        for name, kubelet in self.kubelets.items():
            kubelet.receive(devices[name])
        amounts = {name: len(kubelet.healthy) for name, kubelet in self.kubelets.items()}
        self.statuses.append((self._arrival(self.statuses), amounts))

    def step(self) -> None:
        """Let a second pass in which something happens."""
        self.now += 1
        while self.views and self.views[0][0] <= self.now:
            self.view = self.views.pop(0)[1]
            self.send_list()
        while self.statuses and self.statuses[0][0] <= self.now:
            self.scheduler = self.statuses.pop(0)[1]
        self.receive_lists()
        often = (self.place, self.place, self.bind, self.bind, self.admit, self.admit, self.refresh)
        restarts = (self.restart_kubelet, self.restart_agent, self.restart_agent)
        seldom = (self.resize, self.resize, self.delete, self.change, self.ask_kubelet, *restarts)
        self.chance.choice((*often, *often, *often, *often, *often, *seldom))()

    def _forget(self) -> None:
        pods = {pod.name for pod in self.pods}
        for kubelet in self.kubelets.values():
            kubelet.forget(pods)

    def _admit(self, pod: Pod) -> None:
        self.admitted += not pod.is_admitted
        pod.is_admitted = True
        for name, needed in pod.needs.items():
            try:
                self.kubelets[name].admit(pod.name, needed)
            except UnexpectedAdmissionError as error:
                if next(gpu.healthy for gpu in self.refusable if gpu.uuid == pod.gpu):
                    self.refused.append(f"at {self.now}: {pod.name} on {pod.gpu}: {error}")

    def _publish_ledger(self) -> int:
        """Return when the agent will learn of the present ledger."""
        at = self._arrival(self.views)
        self.views.append((at, self._cluster()))
        return at

    def _arrival(self, before: Sequence[tuple[int, object]]) -> int:
        """Return when a message sent now arrives, after the ones in `before`."""
        return max(self.now + self.chance.randint(0, LATE_SECONDS), before[-1][0] if before else 0)

    def _cluster(self) -> View:
        entries = tuple(
            Allocation(
                pod.name, PodRef("ml", pod.name, pod.name), (GivenShare(("main",), (pod.gpu,), pod.given, 100, 0),)
            )
            for pod in self.pods
        )
        return View(GpuNode("n", allocations=entries), tuple(pod.manifest for pod in self.pods if pod.is_bound))

    def _list(self) -> tuple[tuple[Gpu, ...], bool, advertisement.Advertisement]:
        devices = advertisement.of_shares(self.seen, usable=self.allocatable_units(self.seen), in_use=self.given)
        more = {name: self._stale_devices(name) if self.is_starting else 0 for name in devices}
        listed = {
            name: self.removals[name].listed(advertisement.and_more(name, devices[name], more[name]))
            for name in devices
        }
        return self.seen, self.view is not None, listed

    def _stale_devices(self, name: str) -> int:
        """Return how many devices the kubelet counts for ended pods, as far as the agent knows."""
        living = {manifest["metadata"]["uid"] for manifest in self.view.pods} if self.view else set()
        return len(set().union(*(ids for held_by, ids in self.kubelets[name].held.items() if held_by not in living)))

    @property
    def refusable(self) -> tuple[Gpu, ...]:
        """The GPUs that decide whether a refusal is allowed: an agent that does not know the ledger offers no unhealthy
        GPU.
        """
        return self.gpus if self.was_known else self.list_gpus


@pytest.mark.parametrize("seed", range(40))
def test_kubelet_never_refuses_a_pod_on_a_healthy_gpu(seed: int) -> None:
    node = Node(seed)
    for _ in range(STEPS):
        node.step()
        assert not node.refused
    assert node.admitted
