"""Laws of placement in a small made-up world: what is left unallocated, and that one state gives one answer.

Nodes differ in CPU per GPU; pods differ in CPU; another scheduler spreads pods without a GPU over the same nodes.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import statistics
import sys

import pytest

from gpushare import ledger
from gpushare import request as requests
from gpushare.allocation import Memory, PodRef, Share
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.mix import Host, Mix, RequestClass, classes_of
from gpushare.placement import NodeView, Placement
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.placement_profile import PlacementProfile
from gpushare.request import Constraints, Demand, Request
from tests import builders
from tests.builders import GIB

NODES = (("large", 8, 12), ("rich", 2, 52), ("poor", 2, 8))  # model, GPUs, CPUs per GPU
OF_EACH = 24
CPUS, WEIGHTS = (1, 4, 8, 16, 32), (4, 4, 3, 2, 1)  # of pods with a whole GPU
OTHERS, OTHER_CPUS = 0.25, 16  # part of the pods without a GPU, and their CPUs
LESSONS = (50, 100, 150, 200)  # pods


class World:
    """A cluster that fills with pods; `asked` and `placed` count pods with a GPU. named: part of them with a model."""

    def __init__(self, seed: int, *, named: float = 0.0) -> None:
        self._draw = random.Random(seed)
        self._named = named
        self.fleet = Fleet()
        self.nodes: dict[str, GpuNode] = {}
        self._cpu: dict[str, int] = {}
        self._others = 0  # milli-CPUs of pods without a GPU
        self._has: dict[str, int] = {}
        self._seen: collections.Counter[RequestClass] = collections.Counter()
        self.asked = self.placed = 0
        for model, gpus, cpus in NODES:
            for number in range(OF_EACH):
                name = f"{model}-{number:02}"
                devices = tuple(Gpu(f"{name}/{index}", index, model, 16 * GIB) for index in range(gpus))
                self.nodes[name] = GpuNode(name, devices)
                self._cpu[name] = self._has[name] = 1000 * cpus * gpus
                self.show(self.fleet, name)
        self.gpus = sum(len(node.gpus) for node in self.nodes.values())

    def show(self, fleet: Fleet, name: str) -> None:
        fleet.update(NodeView.from_node(self.nodes[name]), room=Room(self._cpu[name], 1e15))

    def next_pod(self) -> tuple[Request, Host]:
        is_named = bool(self._named) and self._draw.random() < self._named
        models = (self._draw.choice(NODES)[0],) if is_named else ()
        request = Request((Demand(("main",), Share(100, 100, Memory(percent=100)), 1),), Constraints(models=models))
        return request, Host(1000 * self._draw.choices(CPUS, WEIGHTS)[0])

    def spread_one(self) -> None:
        """Place a pod without a GPU on the node with the largest part of its CPU free."""
        name = max(self.nodes, key=lambda name: (self._cpu[name] / self._has[name], self._draw.random()))
        if self._cpu[name] >= 1000 * OTHER_CPUS:
            self._cpu[name] -= 1000 * OTHER_CPUS
            self._others += 1000 * OTHER_CPUS
            self.show(self.fleet, name)

    def fill(self, load: float) -> None:
        """Add pods until they have requested this part of the GPUs."""
        while self.asked < load * self.gpus:
            if self._draw.random() < OTHERS:
                self.spread_one()
                continue
            request, host = self.next_pod()
            self.asked += 1
            choice = self.fleet.place(request, host=host)
            if isinstance(choice, Placement):
                self.take(choice, request, host)

    def take(self, choice: Placement, request: Request, host: Host) -> None:
        self.placed += 1
        self._seen.update(classes_of(request, host))
        entry = choice.allocation(
            request, allocation_id=str(self.placed), pod=PodRef("default", uid="known"), reserved_until=None
        )
        self.nodes[choice.node] = ledger.reserve(self.nodes[choice.node], entry)
        self._cpu[choice.node] -= host.cpu_milli
        self.show(self.fleet, choice.node)
        if self.placed in LESSONS:
            mix = Mix.from_counts(self._seen, pods=self.placed)
            self.fleet.learn(dataclasses.replace(mix, others=Host(self._others)))


def test_cpu_that_whole_gpus_need_is_left_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what other pods request (`Mix.others`), 3.4 % are left."""
    monkeypatch.setattr(sys.modules[__name__], "OTHERS", 0.3)
    monkeypatch.setattr(sys.modules[__name__], "OTHER_CPUS", 32)
    left = []
    for seed in range(6):
        world = World(seed)
        world.fill(1.0)
        left.append(1 - world.placed / world.gpus)
    assert statistics.mean(left) < 0.025


@pytest.mark.parametrize(("named", "load"), [(0.2, 0.3), (0.5, 0.9)])
def test_one_state_gives_one_answer(named: float, load: float) -> None:
    world = World(1, named=named)
    world.fill(load)
    other = Fleet()
    for name in reversed(world.nodes):
        world.show(other, name)
    other.learn(PlacementProfile.read(PlacementProfile(mix=world.fleet.mix).data()).mix)
    for _ in range(60):
        request, host = world.next_pod()
        choice = world.fleet.place(request, host=host)
        assert other.place(request, host=host) == choice
        if isinstance(choice, Placement):
            lesson = world.fleet.mix
            world.take(choice, request, host)
            world.show(other, choice.node)
            if world.fleet.mix is not lesson:
                other.learn(world.fleet.mix)


def test_answers_before_the_first_lesson_do_not_depend_on_history() -> None:
    """One fleet answers while no GPU takes shares yet; the other starts later."""
    draw = random.Random(1)
    for _ in range(40):
        nodes = [
            builders.node(f"node-{number}", gpus=draw.choice((1, 2, 4, 8)), model=draw.choice(("A100", "L4")))
            for number in range(draw.randint(2, 4))
        ]
        early, late = Fleet(), Fleet()
        mode, healthy = draw.choice(((Mode.EXCLUSIVE, True), (Mode.FRACTIONAL, False)))
        for node in nodes:
            gpus = tuple(dataclasses.replace(gpu, mode=mode, healthy=healthy) for gpu in node.gpus)
            early.update(NodeView.from_node(dataclasses.replace(node, gpus=gpus)))
        early.place(requests.parse(builders.pod(request="0.5")))
        for node in nodes:
            early.update(NodeView.from_node(node))
            late.update(NodeView.from_node(node))
        for percent in ("0.1", "0.3", "0.5", "0.7", "1"):
            asked = requests.parse(builders.pod(request=percent))
            assert early.place(asked) == late.place(asked)
