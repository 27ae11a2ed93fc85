"""How long a placer round with nothing to do blocks the event loop: 32,000 pods with shares by default.

The elected placer shares its process with a webhook: while a piece of its round runs, no review is answered. The
figures are the CPU time of each part of a round in which no pod, one pod, or one pod in a thousand has changed. The
baseline is the time of that part when it examines everything. Whole rounds follow, with the parts of a replica, and the
longest piece between two turns of the event loop; then rounds of preemption for a pod of a higher priority, which
searches every node for victims, whether they would help or not. Prints a table for people, then one JSON object a line
per figure.

Run: python bench/rounds.py [--pods 32000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from gpushare import codec, contract, request
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.cluster import api_client, api_errors, events
from gpushare.gpunode import Gpu, GpuNode
from gpushare.refusal import Refusal
from webhook import metrics
from webhook.controllers import due_changes, evictor, restore
from webhook.controllers.allocation_controller import AllocationController
from webhook.controllers.evictor import Evictor
from webhook.controllers.gated_pods import fairness, waiting_units
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.gated_pods.waiting_units import AllocationHolders, PodIndex
from webhook.controllers.preemption.preemptor import Preemptor
from webhook.controllers.resize_requests import ResizeRequests
from webhook.controllers.resizer import Resizer
from webhook.controllers.touched_nodes import Touched, TouchedNodes
from webhook.placer import Placer
from webhook.pods.stored_pod import Pod
from webhook.store.api_store import ApiStore
from webhook.store.reservation import Reservation

GIB = 2**30
GPUS = 8
SHARES = 16  # on each node
GOAL_MS = 20.0
PIECE_GOAL_MS = 50.0  # of preemption
REPEATS = 3

Json = dict[str, Any]
Work = Callable[[], object]


def share(number: int, node: str, uuid: str) -> tuple[Json, Allocation]:
    """Return a running pod and its allocation."""
    name = f"p{number}"
    annotations = {
        contract.REQUEST: "0.5", contract.ALLOCATION: f"a{number}", contract.NODE: node, contract.GPU_UUIDS: uuid,
    }  # fmt: skip
    metadata = {
        "namespace": f"team-{number % 50}",
        "name": name,
        "uid": name,
        "resourceVersion": "1",
        "annotations": annotations,
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "labels": {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE},
    }
    limits = {contract.RESOURCE_PERCENT: "50"}
    made = {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Running", "containerStatuses": [{}]},
    }
    holder = PodRef(metadata["namespace"], name, name)  # type: ignore[arg-type]
    return made, Allocation(f"a{number}", holder, (GivenShare(("main",), (uuid,), 50, 100, 40 * GIB),))


def cluster(count: int) -> tuple[list[GpuNode], list[Json]]:
    """Return nodes and their pods."""
    nodes: list[GpuNode] = []
    pods: list[Json] = []
    for at in range(count // SHARES):
        name = f"n{at:05d}"
        gpus = tuple(Gpu(f"GPU-{at}-{index}", index, "H100", 80 * GIB, (9, 0)) for index in range(GPUS))
        made = [share(at * SHARES + number, name, gpus[number // 2].uuid) for number in range(SHARES)]
        pods += [manifest for manifest, _ in made]
        nodes.append(GpuNode(name, gpus, tuple(entry for _, entry in made)))
    return nodes, pods


def arrange(index: PodIndex) -> waiting_units.Arranged:
    return waiting_units.Arranger().arrange(index.waiting, index.members)


class Parts:
    """The parts of a placer round that examine pods and nodes."""

    def __init__(self, nodes: list[GpuNode], pods: list[Pod]) -> None:
        self.nodes, self.pods = nodes, pods
        self.changes, self.known = TouchedNodes(), due_changes.DueChangesByNode()
        self.sightings, self.wishes, self.conflicts = (
            due_changes.FirstSeen(60.0),
            ResizeRequests(),
            evictor.AllocationConflicts(),
        )
        self.arranger, self.passes, self.index = waiting_units.Arranger(), fairness.OvertakeCounter(), PodIndex()
        self.holders = AllocationHolders()
        self.touched = self.everything = Touched(tuple(nodes), tuple(pods), frozenset(node.name for node in nodes))
        self.unsent: list[tuple[Pod | None, Pod]] = [(None, pod) for pod in pods]

    def deliver(self) -> None:
        """Deliver the changed pods as the informer does."""
        for before, after in self.unsent:
            self.changes.update_pod(before, after)
            self.index.update(before, after)
        self.unsent = []

    def books(self) -> None:
        self.touched = self.changes.collect(self.nodes, also=self.known.unconfirmed)
        self._examine(self.touched)
        there = {node.name for node in self.nodes}
        restore.orphaned(there, self.changes.placed_elsewhere(there))

    def _examine(self, touched: Touched) -> None:
        nodes = self.sightings.timed(touched.nodes, now=0.0)
        self.known.renew(nodes, touched.names, due_changes.find(nodes, touched.pods, now=0.0))
        restore.lost(touched.nodes, touched.pods)

    def existing(self) -> None:
        arranged = self.arranger.arrange(self.index.waiting, self.index.members)
        self.holders.existing(self.nodes, arranged)

    def change(self, pods: Iterable[int]) -> None:
        """Give each of these pods, and its node, a new version."""
        for at in pods:
            before = self.pods[at]
            self.pods[at] = dataclasses.replace(before, version=str(int(before.version) + 1))
            self.unsent.append((before, self.pods[at]))
            self.nodes[at // SHARES] = dataclasses.replace(self.nodes[at // SHARES])

    def pieces(self) -> dict[str, Work]:
        return {
            "told of pods": self.deliver,
            "books": self.books,
            "wishes": lambda: list(self.wishes.search(self.touched)),
            "gated": self.existing,
            "passes": lambda: self.passes.count(self.index, ()),
            "stuck": lambda: list(self.index.stuck.values()),
            "conflicts": lambda: self.conflicts.renew(self.touched),
        }

    def whole(self) -> dict[str, Work]:
        """Return the same parts, examining everything."""
        return {
            "books": lambda: self._examine(self.everything),
            "wishes": lambda: ResizeRequests().find(self.nodes, self.pods),
            "gated": lambda: arrange(PodIndex(self.pods)),
            "passes": lambda: fairness.OvertakeCounter().count(PodIndex(self.pods), ()),
            "stuck": lambda: [pod for pod in self.pods if pod.is_stuck],
            "conflicts": lambda: evictor.AllocationConflicts().renew(self.everything),
        }


class Still:
    """An API server with these objects on which nothing ever changes."""

    def __init__(self, nodes: Iterable[GpuNode], pods: list[Json]) -> None:
        metadata = {"resourceVersion": "1"}
        gpunodes = [codec.to_document(node) for node in nodes]
        for gpunode in gpunodes:
            gpunode["metadata"] = {**gpunode["metadata"], **metadata}
        self._found = {contract.GPUNODE_PATH: gpunodes, "/api/v1/pods": pods}

    async def list(self, path: str, *_: object, keep: Callable[[dict[str, Any]], Any]) -> api_client.ObjectList[Any]:
        return api_client.ObjectList([keep(item) for item in self._found.get(path, [])], "1")

    @contextlib.asynccontextmanager
    async def watch(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[Json]]:
        async def nothing() -> AsyncIterator[Json]:
            await asyncio.Event().wait()
            yield {}

        yield nothing()


class Slices:
    """A task that records the longest time for which the event loop was busy in one piece."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def measure(self) -> None:
        began = time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.process_time()
            self.longest, began = max(self.longest, now - began), now


async def rounds(nodes: Iterable[GpuNode], pods: list[Json]) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the first pod's placement time, and the (total, longest piece) of two rounds, in milliseconds.

    The two rounds are the first, and one in which nothing has changed.
    """
    api: Any = Still(nodes, pods)
    measured = metrics.Metrics()
    recorder = events.Recorder(api, controller="bench", instance="bench")
    store = ApiStore(api, measured)
    opening = GatedPodScheduler(api, store, Reservation(store, policy="pack"), recorder, measured)
    touched_nodes = TouchedNodes()
    books = AllocationController(api, store, touched_nodes, recorder, measured)
    resizer = Resizer(api, store, recorder, measured)
    evictions = Evictor(api, recorder, measured)
    placer = Placer(store, touched_nodes, books, opening, leads=lambda: True, resizer=resizer, evictor=evictions)
    times: dict[str, tuple[float, float]] = {}
    running = [asyncio.create_task(store.run())]
    await store.synced()
    gc.collect()
    gc.freeze()
    pod = {"metadata": {"annotations": {contract.REQUEST: "0.5"}}, "spec": {"containers": [{"name": "main"}]}}
    asked = request.parse(pod)
    waited = milliseconds(lambda: store.chooser.place(pod, asked, policy="fragmentation"))
    for when in ("first", "idle"):
        totals, pieces = [], []
        for _ in range(1 if when == "first" else REPEATS):
            slices = Slices()
            beside = asyncio.create_task(slices.measure())
            await asyncio.sleep(0)
            began = time.process_time()
            await placer.reconcile()
            while touched_nodes.has_more:  # a round does not examine a large cluster at once
                await placer.reconcile()
            totals.append(time.process_time() - began)
            beside.cancel()
            pieces.append(slices.longest)
        times[when] = min(totals) * 1000, min(pieces) * 1000
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return waited, times


class Protecting(Still):
    """An API server on which no pod may be evicted, so that a search never ends with an eviction."""

    def __init__(self, nodes: Sequence[GpuNode], pods: list[Json]) -> None:
        super().__init__(nodes, pods)
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", contract.RESOURCE_PERCENT: str(100 * GPUS)}
        status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        self._found["/api/v1/nodes"] = [
            {"metadata": {"name": node.name, "labels": {contract.HOSTNAME_LABEL: node.name}}, "status": status}
            for node in nodes
        ]

    async def get(self, path: str) -> Json:
        raise api_errors.NotFound(path, status=404)


async def search(api: Any, store: ApiStore, waits: Pod, slices: Slices | None) -> tuple[float, int]:
    """Search for victims for a second of CPU time; return how long that took, and how many nodes were searched."""
    measured = metrics.Metrics()
    recorder, clock = events.Recorder(api, controller="bench", instance="bench"), time.process_time
    preemptor = Preemptor(api, store, store.pods.objects, recorder, measured, "pack", clock=clock)
    find, count = preemptor._finder.find, 0

    async def counted(*asked: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        return await find(*asked, **more)

    preemptor._finder.find = counted  # type: ignore[method-assign]
    beside = asyncio.create_task(slices.measure()) if slices is not None else None
    await asyncio.sleep(0)
    began = clock()
    await preemptor.reconcile([(waits, Refusal("no GPU fits"))])
    if beside is not None:
        beside.cancel()
    return clock() - began, count


async def preempting(nodes: Sequence[GpuNode], pods: list[Json]) -> dict[str, tuple[float, float, int]]:
    """Return for a pod that evictions would help, and one that they would not: the (total, longest piece) of a round in
    milliseconds, and the searched nodes.
    """
    owned = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "o", "controller": True}]
    pods = [{**made, "metadata": {**made["metadata"], "ownerReferences": owned}} for made in pods]
    api: Any = Protecting(nodes, pods)
    store = ApiStore(api, metrics.Metrics())
    running = [asyncio.create_task(store.run())]
    await store.synced()
    gc.collect()
    gc.freeze()
    times: dict[str, tuple[float, float, int]] = {}
    for when, memory in (("helps", "80Gi"), ("useless", "81Gi")):
        annotations = {contract.REQUEST: "1", contract.GPUS: "1", contract.MEMORY: memory}
        metadata = {"namespace": "urgent", "name": when, "uid": when, "annotations": annotations}
        spec: Json = {"priority": 10, "containers": [{"name": "main"}]}
        made = {"metadata": metadata, "spec": spec}
        waits = dataclasses.replace(Pod.from_manifest(made), is_gated=True, manifest=made)
        total, count = await search(api, store, waits, None)
        slices = Slices()
        await search(api, store, waits, slices)
        times[when] = total * 1000, slices.longest * 1000, count
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return times


def milliseconds(work: Work) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=32_000)
    nodes, pods = cluster(parser.parse_args().pods)
    logging.disable(logging.CRITICAL)
    there = Parts(nodes, [Pod.from_manifest(pod) for pod in pods])
    pieces = there.pieces()
    for work in pieces.values():
        work()  # excludes the first examination
    gc.collect()
    gc.freeze()  # as the webhook does after its first list
    whole = {name: min(milliseconds(work) for _ in range(REPEATS)) for name, work in there.whole().items()}
    changes: dict[str, Sequence[int]] = {"idle": (), "one": (0,), "thousandth": range(0, len(pods), 1000)}
    times: dict[str, dict[str, float]] = {name: {} for name in pieces}
    for when, changed in changes.items():
        for _ in range(REPEATS):
            there.change(changed)
            for name, work in pieces.items():
                times[name][when] = min(times[name].get(when, math.inf), milliseconds(work))
    print(f"{'ms':14} {'all looked at':>14} {'nothing new':>12} {'one pod':>9} {'one in 1000':>12}")
    for name, by in times.items():
        print(f"{name:14} {whole.get(name, 0.0):14.1f} {by['idle']:12.2f} {by['one']:9.2f} {by['thousandth']:12.2f}")
    waited, whole_rounds = asyncio.run(rounds(there.nodes, pods))
    print(f"the first placement takes {waited:.1f} ms")
    for when, (total, longest) in whole_rounds.items():
        print(f"round, {when:6}: {total:.1f} ms, the longest piece {longest:.1f} ms")
    preemption = asyncio.run(preempting(there.nodes, pods))
    for when, (total, longest, count) in preemption.items():
        each = f"{total:.0f} ms for {count} nodes, {total / max(1, count):.2f} ms each"
        print(f"preemption, {when:7}: {each}, the longest piece {longest:.1f} ms")
    for when, (total, longest, count) in preemption.items():
        for name, value, goal in (("node", total / max(1, count), None), ("longest", longest, PIECE_GOAL_MS)):
            figure = {"figure": f"preemption.{when}.{name}", "value": round(value, 2), "unit": "ms"}
            print(json.dumps(figure | ({"goal": goal} if goal else {})))
    for name, by in times.items():
        for when, value in by.items():
            figure = {"figure": f"round.{name}.{when}", "value": round(value, 2), "unit": "ms", "goal": GOAL_MS}
            against = {"against": "all looked at", "ratio": round(value / whole[name], 4)} if name in whole else {}
            print(json.dumps({**figure, **against}))
    print(json.dumps({"figure": "round.first-pod", "value": round(waited, 2), "unit": "ms", "goal": GOAL_MS}))
    for when, (total, longest) in whole_rounds.items():
        figure = {"figure": f"round.longest.{when}", "value": round(longest, 2), "unit": "ms"}
        print(json.dumps({**figure, "against": "the round", "ratio": round(longest / total, 3), "goal": GOAL_MS}))


if __name__ == "__main__":
    main()
