"""A law: whatever happens on a node, the kubelet never refuses a pod that the ledger has on healthy GPUs.

Agent, kubelet and scheduler hear of things late, and each at another time. Three things are taken for granted. Whatever
is told is heard within `LATE_SECONDS`, in the order in which it was told. What the agent says of a GPU has come to the
kubelet, by a socket, when the webhook gives something of it, by way of the API server. And a pod comes to the node
after the agent has heard of its share, which stood in the ledger long before.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Sequence

import pytest

from deviceplugin.kubelet import plugin_service, share_answers
from deviceplugin.state import advertisement, allocatable
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpu import Gpu, Mode
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson
from tests import builders
from tests.deviceplugin.kubelet.device_manager import DeviceManager, UnexpectedAdmissionError

pytestmark = pytest.mark.slow

PERCENT, IDLE = advertisement.COUNTERS
LATE_SECONDS = 2
STEPS = 400


@dataclasses.dataclass(slots=True)
class Pod:
    """A pod with a share: what it counts for, and what it was given (it may have been made smaller)."""

    name: str
    gpu: str
    counts: int
    given: int
    heard_at: int = 0  # when the agent knows of it
    is_bound: bool = False
    is_admitted: bool = False

    @property
    def needs(self) -> dict[str, int]:
        """Devices, by resource."""
        return {PERCENT: self.counts, IDLE: 0 if self.counts else 1}

    @property
    def manifest(self) -> PodJson:
        """As the API server has it."""
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
    """What the agent knows of the cluster."""

    node: GpuNode
    pods: tuple[PodJson, ...]


class Node:
    """One node, its agent, kubelet and scheduler, and the ledger; `now` is in seconds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0
        self.gpus: tuple[Gpu, ...] = builders.node(gpus=self.chance.randint(1, 4)).gpus
        self.pods: list[Pod] = []
        self.names = itertools.count()
        self.kubelets = {name: self._kubelet(name) for name in advertisement.COUNTERS}
        self.given: dict[str, set[str]] = {name: set() for name in advertisement.COUNTERS}
        self.seen: tuple[Gpu, ...] = self.gpus
        self.views: list[tuple[int, View]] = []  # each with when the agent hears of it
        self.view: View | None = View(GpuNode("n"), ())  # None until it has heard of it
        self.lists: list[
            tuple[int, tuple[tuple[Gpu, ...], bool, advertisement.Advertisement]]
        ] = []  # on their way to the kubelet
        self.told: tuple[Gpu, ...] = ()  # when the last list was made that the kubelet has
        self.was_known = True  # the ledger, when that list was made
        self.statuses: list[tuple[int, dict[str, int]]] = []  # on their way to the scheduler
        self.scheduler: dict[str, int] = {}
        self.is_away = True  # the kubelet
        self.is_starting = False  # the kubelet is, and the agent tells it of more devices
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
                self.kubelet_hears(at_once=True)

        return DeviceManager(self.chance, allocate)

    # -- what happens in the cluster

    def place(self) -> None:
        """The webhook gives a share on a GPU of which the agent says that it is healthy, and that has room for it."""
        gpu = self.chance.choice(self.told)
        free = 100 - sum(pod.given for pod in self.pods if pod.gpu == gpu.uuid)
        amount = self.chance.choice((0, 1, 10, 33, 50, 100))
        if gpu.healthy and gpu.pending_mode is None and amount <= free:
            self.pods.append(Pod(f"p{next(self.names)}", gpu.uuid, amount, amount))
            self.pods[-1].heard_at = self._written()

    def resize(self) -> None:
        """A share is made smaller or larger, as far as its GPU has room."""
        bound = [pod for pod in self.pods if pod.is_bound and pod.counts]
        if bound:
            pod = self.chance.choice(bound)
            free = 100 - sum(
                manifest.given for manifest in self.pods if manifest.gpu == pod.gpu and manifest is not pod
            )
            pod.given = self.chance.randint(1, free)
            self._written()

    def delete(self) -> None:
        """A pod ends, and its share with it."""
        if self.pods:
            pod = self.chance.choice(self.pods)
            self.pods.remove(pod)
            self._written()

    def change(self) -> None:
        """A GPU falls sick or gets well, or is to have another mode and no longer so."""
        which = self.chance.randrange(len(self.gpus))
        gpu = self.gpus[which]
        pending = None if gpu.pending_mode else Mode.EXCLUSIVE
        changed = dataclasses.replace(
            gpu, **self.chance.choice(({"healthy": not gpu.healthy}, {"pending_mode": pending}))
        )
        self.gpus = (*self.gpus[:which], changed, *self.gpus[which + 1 :])

    def bind(self) -> None:
        """The scheduler binds a pod, if by what it has heard there is room for what it counts for."""
        waiting = [pod for pod in self.pods if not pod.is_bound and pod.heard_at <= self.now]
        if waiting:
            pod = self.chance.choice(waiting)
            for name, needed in pod.needs.items():
                requested = sum(pod.needs[name] for pod in self.pods if pod.is_bound)
                if needed and requested + needed > self.scheduler.get(name, 0):
                    return
            pod.is_bound = True
            self._written()

    def admit(self) -> None:
        """The kubelet admits a pod that is bound."""
        waiting = [pod for pod in self.pods if pod.is_bound and not pod.is_admitted]
        if waiting and not self.is_away:
            pod = self.chance.choice(waiting)
            self._forget()
            self._admit(pod)

    # -- restarts

    def restart_kubelet(self) -> None:
        """It is away for a while, or comes back.

        Then it has forgotten what there is, hears it again, and admits all pods that have come, and once more those of
        which nothing runs, before it forgets pods that are no more.
        """
        self.lists.clear()
        self.is_away = not self.is_away
        if self.is_away:
            return
        self.is_starting = True
        self.kubelet_told(self._list())
        for pod in self.pods:
            if pod.is_bound and (not pod.is_admitted or self.chance.random() < 0.5):
                self._admit(pod)
        self.is_starting = self.chance.random() < 0.5  # it is no longer told of more devices, or for a while yet

    def restart_agent(self) -> None:
        """It forgets everything, asks driver and kubelet, and tells again; the API server may answer late.

        Between two agents no device is healthy to the kubelet, so it chooses none before it hears of the second.
        """
        self.stabilized = allocatable.Stabilized(self._allocatable, clock=lambda: self.now)
        self.removals = {name: plugin_service.GradualRemoval(lambda: self.now) for name in advertisement.COUNTERS}
        self.views.clear()
        self.view, self.seen = None, self.gpus
        self.ask_kubelet()
        if self.chance.random() < 0.5:
            self.view = self._cluster()
        else:
            self._written()
        self.lists.clear()
        if not self.is_away:
            self.kubelet_told(self._list())

    def _allocatable(self, gpus: Iterable[Gpu]) -> allocatable.Allocatable:
        if self.view is None:
            return allocatable.while_unknown(gpus, self.given)
        return allocatable.allocatable(gpus, self.view.node, self.view.pods)

    # -- who hears what

    def ask_kubelet(self) -> None:
        """The agent asks who holds what."""
        self.given = {name: set().union(*kubelet.held.values()) for name, kubelet in self.kubelets.items()}

    def look(self) -> None:
        """The agent looks at its GPUs, hears what the API server has to say, and tells the kubelet."""
        self.seen = self.gpus
        self.tell()

    def tell(self) -> None:
        """The agent tells the kubelet what there is now."""
        self.lists.append((self._heard(self.lists), self._list()))

    def kubelet_hears(self, *, at_once: bool = False) -> None:
        """The newest list that has come, or `at_once` all that are on their way; it is in the node's status later."""
        now = self.now + (LATE_SECONDS if at_once else 0)
        come = [message for at, message in self.lists if at <= now]
        if come and not self.is_away:
            self.lists = [entry for entry in self.lists if entry[0] > now]
            self.kubelet_told(come[-1])

    def kubelet_told(self, message: tuple[tuple[Gpu, ...], bool, advertisement.Advertisement]) -> None:
        """Take the list, and write the node's status."""
        self.told, self.was_known, devices = message
        for name, kubelet in self.kubelets.items():
            kubelet.told(devices[name])
        amounts = {name: len(kubelet.healthy) for name, kubelet in self.kubelets.items()}
        self.statuses.append((self._heard(self.statuses), amounts))

    def step(self) -> None:
        """A second goes by, in which something happens."""
        self.now += 1
        while self.views and self.views[0][0] <= self.now:
            self.view = self.views.pop(0)[1]
            self.tell()
        while self.statuses and self.statuses[0][0] <= self.now:
            self.scheduler = self.statuses.pop(0)[1]
        self.kubelet_hears()
        often = (self.place, self.place, self.bind, self.bind, self.admit, self.admit, self.look)
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

    def _written(self) -> int:
        """When the agent hears of what is in the ledger now."""
        at = self._heard(self.views)
        self.views.append((at, self._cluster()))
        return at

    def _heard(self, before: Sequence[tuple[int, object]]) -> int:
        """When something is heard of that is told now, after what was told `before`."""
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
        devices = advertisement.of_shares(self.seen, usable=self.stabilized(self.seen), in_use=self.given)
        more = {name: self._stale_devices(name) if self.is_starting else 0 for name in devices}
        listed = {
            name: self.removals[name].listed(advertisement.and_more(name, devices[name], more[name]))
            for name in devices
        }
        return self.seen, self.view is not None, listed

    def _stale_devices(self, name: str) -> int:
        """How many devices the kubelet has for pods that are no more, as far as the agent has heard."""
        living = {manifest["metadata"]["uid"] for manifest in self.view.pods} if self.view else set()
        return len(set().union(*(ids for held_by, ids in self.kubelets[name].held.items() if held_by not in living)))

    @property
    def refusable(self) -> tuple[Gpu, ...]:
        """By which it is judged whether a pod may be refused: an agent that knows no ledger offers no sick GPU."""
        return self.gpus if self.was_known else self.told


@pytest.mark.parametrize("seed", range(40))
def test_kubelet_never_refuses_a_pod_on_a_healthy_gpu(seed: int) -> None:
    node = Node(seed)
    for _ in range(STEPS):
        node.step()
        assert not node.refused
    assert node.admitted
