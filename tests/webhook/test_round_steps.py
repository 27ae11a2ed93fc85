"""The cost of a round, in steps instead of time: nearly nothing if nothing has changed, with any number of pods.

A step is an executed line of Python. `bench/rounds.py` measures the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import sys
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.cluster import api_client, api_errors, events
from gpushare.gpunode import GpuNode
from tests import builders
from webhook import metrics
from webhook.controllers import pacing
from webhook.controllers.allocation_controller import AllocationController
from webhook.controllers.evictor import Evictor
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.resizer import Resizer
from webhook.controllers.touched_nodes import TouchedNodes
from webhook.placer import Placer
from webhook.store import chooser
from webhook.store.api_store import ApiStore
from webhook.store.reservation import Reservation

pytestmark = pytest.mark.slow

Json = dict[str, Any]
FEW, MANY = 4, 36  # on one node
PER_NODE = 50  # to see that it has not changed, in some parts of a round
GIB = 2**30


class Api:
    """Stands for an API server that rejects every write and sends the events that a test gives it."""

    def __init__(self, nodes: list[GpuNode], pods: list[Json]) -> None:
        gpunodes = [codec.to_document(node) for node in nodes]
        for gpunode in gpunodes:
            gpunode["metadata"]["resourceVersion"] = "1"
        self._found = {contract.GPUNODE_PATH: gpunodes, "/api/v1/pods": pods}
        self.events: asyncio.Queue[Json] = asyncio.Queue()

    async def list(self, path: str, *_: object, keep: Callable[[dict[str, Any]], Any]) -> api_client.ObjectList[Any]:
        return api_client.ObjectList([keep(item) for item in self._found.get(path, [])], "1")

    @contextlib.asynccontextmanager
    async def watch(self, path: str, *_: object, **__: object) -> AsyncIterator[AsyncIterator[Json]]:
        async def happening() -> AsyncIterator[Json]:
            queue = self.events if path == "/api/v1/pods" else asyncio.Queue[Json]()
            while True:
                yield await queue.get()
                queue.task_done()

        yield happening()

    async def refuse(self, *_: object) -> Json:
        raise api_errors.Forbidden("nothing is written here")

    patch = replace = create = get = refuse


def stopped() -> float:
    """Return a constant time, so that nothing becomes due between two rounds."""
    return 0.0


def running(name: str, node: str, identity: str, uuid: str) -> Json:
    pod = builders.counted(builders.pod(name, request="0.02", memory="1Gi"))
    pod["metadata"].update(uid=name, resourceVersion="1", creationTimestamp="2026-01-01T00:00:00Z")
    annotations = {contract.ALLOCATION: identity, contract.NODE: node, contract.GPU_UUIDS: uuid}
    pod["metadata"]["annotations"].update(annotations)
    pod["metadata"]["labels"] = {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE}
    pod["spec"]["nodeName"] = node
    return {**pod, "status": {"phase": "Running", "containerStatuses": [{}]}}


def gated(name: str) -> Json:
    pod = builders.counted(builders.pod(name, request="1", gpus="8"))
    pod["metadata"].update(uid=name, resourceVersion="1", creationTimestamp="2026-01-02T00:00:00Z")
    pod["metadata"]["labels"] = {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE}
    pod["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    return {**pod, "status": {"phase": "Pending"}}


def cluster(nodes: int, pods: int) -> tuple[list[GpuNode], list[Json]]:
    """Return this many nodes with this many pods each."""
    made: list[GpuNode] = []
    there: list[Json] = []
    for number in range(nodes):
        empty = builders.node(f"n{number:03d}", gpus=1)
        (gpu,) = empty.gpus
        entries = []
        for index in range(pods):
            name, identity = f"p{number}-{index}", f"a{number}-{index}"
            there.append(running(name, empty.name, identity, gpu.uuid))
            share = GivenShare(("main",), (gpu.uuid,), 2, 100, GIB)
            entries.append(Allocation(identity, PodRef("default", name, name), (share,)))
        made.append(GpuNode(empty.name, empty.gpus, tuple(entries)))
    return made, there


def is_lesson_due(pods: int, known_pods: int) -> bool:
    """Whether placement learns again with this many pods, because the first lesson may have covered only some."""
    return pods - known_pods >= max(chooser.FEWEST, known_pods // chooser.PART)


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable rests, which depend on the clock and would be counted."""
    monkeypatch.setattr(pacing, "WORK_SECONDS", math.inf)


async def steps(nodes: int, pods: int, *, what: str = "") -> int:
    """Return the steps of one round, after earlier rounds on the same cluster; `what` one of the pods does."""
    made, there = cluster(nodes, pods)
    if what == "asks for more than there is":
        there[0]["metadata"]["annotations"][contract.MEMORY] = "500Gi"
    api: Any = Api(made, [*there, *([gated("large")] if what == "waits" else [])])
    measured, recorder = metrics.Metrics(), events.Recorder(api, controller="test", instance="test")
    store = ApiStore(api, measured, clock=stopped)
    reserving = Reservation(store, policy="pack")
    touched_nodes = TouchedNodes()
    placer = Placer(
        store,
        touched_nodes,
        AllocationController(api, store, touched_nodes, recorder, measured, clock=stopped),
        GatedPodScheduler(api, store, reserving, recorder, measured, clock=stopped, wall_clock=stopped),
        leads=lambda: True,
        resizer=Resizer(api, store, recorder, measured, clock=stopped),
        evictor=Evictor(api, recorder, measured, clock=stopped),
        clock=stopped,
    )
    tasks = [asyncio.create_task(store.run())]
    await store.synced()
    async with asyncio.timeout(20):  # what placement learns of them aside, now and again, is not to end while we count
        while is_lesson_due(nodes * pods, store.chooser.mix.pods):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for _ in range(2):
        await placer.reconcile()
    if what == "has changed":
        after = {**there[0], "metadata": {**there[0]["metadata"], "resourceVersion": "2"}}
        api.events.put_nowait({"type": "MODIFIED", "object": after})
        await api.events.join()
    counted, before = 0, sys.gettrace()

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal counted
        counted += event == "line"
        return count

    gc.collect()
    gc.disable()  # no finalizers of other tests' garbage in the count
    sys.settrace(count)
    try:
        await placer.reconcile()
    finally:
        sys.settrace(before)
        gc.enable()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return counted


@pytest.mark.parametrize("what", ["", "waits"])
async def test_law_idle_round_costs_the_same_for_any_number_of_pods(what: str) -> None:
    assert await steps(8, MANY, what=what) == await steps(8, FEW, what=what)


@pytest.mark.parametrize("what", ["", "has changed", "asks for more than there is"])
async def test_law_each_node_costs_few_steps_whatever_one_pod_does(what: str) -> None:
    assert await steps(48, FEW, what=what) - await steps(8, FEW, what=what) <= PER_NODE * 40


@pytest.mark.parametrize("what", ["waits", "has changed", "asks for more than there is"])
async def test_changed_pod_is_checked(what: str) -> None:
    assert await steps(8, FEW, what=what) > await steps(8, FEW) + 20
