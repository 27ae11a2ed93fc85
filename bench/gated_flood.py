"""How long many different gated pods of one namespace delay another namespace's pod: 10,000 on 300 nodes by default.

The cluster is full except for one GPU, on which none of the many fits. A round of the placer starts with the many
alone; then a pod of another namespace arrives, younger than all of them, and fits. The figures are CPU time, which a
busy machine does not stretch. They are: the delay from the arrival until the pod is ungated, which includes the rest of
the current round and the placer's pause (as long as the round, 0.2 to 2 s); the round itself; and the longest time for
which the event loop, and so the webhook, was blocked. The baseline is a round with 10 such pods. Prints a table for
people, then one JSON object a line per figure.

Run: python bench/gated_flood.py [--pods 10000] [--nodes 300]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from typing import Any

from gpushare import contract
from gpushare.cluster import api_errors
from webhook.controllers import queue
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.gated_pods.waiting_units import PodIndex
from webhook.metrics import Metrics
from webhook.placer import MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

GIB = 2**30
GPUS = 8
GOAL_SECONDS = 1.0
FEW = 10

Json = dict[str, Any]


def cluster(nodes: int) -> MemoryStore:
    """Return a store in which every GPU has 10 % and 1 GiB left, except one that is half free."""
    made = []
    for number in range(nodes):
        uuids = [f"GPU-{number:08d}-0000-0000-0000-{index:012d}" for index in range(GPUS)]
        gpus = [
            {"uuid": uuid, "index": index, "model": "H100", "memory": 80 * GIB, "mode": "fractional", "healthy": True}
            for index, uuid in enumerate(uuids)
        ]
        entries = []
        for index, uuid in enumerate(uuids):
            free = number == nodes - 1 and index == 0
            share = {"containers": ["c"], "gpus": [uuid], "request": 50 if free else 90, "limit": 100}
            share["memory"] = (40 if free else 79) * GIB
            holder = {"namespace": "x", "name": f"p{number}-{index}", "uid": f"u{number}-{index}"}
            entries.append({"id": f"a{number}-{index}", "pod": holder, "shares": [share]})
        made.append({"metadata": {"name": f"n{number}"}, "spec": {"allocations": entries}, "status": {"gpus": gpus}})
    return MemoryStore(made)


def gated(namespace: str, number: int, *, percent: int, mebibytes: int) -> Pod:
    name = f"{namespace}-{number:06d}"
    amounts = {contract.RESOURCE_PERCENT: str(percent), contract.RESOURCE_MEMORY: f"{mebibytes}Mi"}
    asked = {contract.REQUEST: f"{percent}%", contract.MEMORY: f"{mebibytes}Mi"}
    made = {
        "metadata": {
            "name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", "annotations": asked,
            "creationTimestamp": "2026-01-01T00:00:00Z" if namespace == "many" else "2026-01-02T00:00:00Z",
            "labels": {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE},
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": amounts, "requests": amounts}}],
            "schedulingGates": [{"name": contract.SCHEDULING_GATE}],
        },
        "status": {"phase": "Pending"},
    }  # fmt: skip
    return Pod.from_manifest(made)


class Placer:
    """The placer's rounds on a ledger in memory."""

    def __init__(self, nodes: int) -> None:
        self.opened: dict[str, float] = {}
        store = cluster(nodes)
        reservation = Reservation(store, policy="fragmentation")
        self._index, self._seen = PodIndex(), 0
        self.scheduler = GatedPodScheduler(self, store, reservation, self, Metrics())

    async def round(self, pods: list[Pod]) -> float:
        """Run a round and return its CPU seconds."""
        began = time.process_time()
        for pod in pods[self._seen :]:
            self._index.update(None, pod)
        self._seen = len(pods)
        outcomes = await self.scheduler.place(self._index, now=time.time())
        queue.counts(outcomes)
        queue.longest_seconds((pod for pod, _ in outcomes), now=time.time())
        return time.process_time() - began

    async def get(self, path: str) -> Json:
        raise api_errors.NotFound(f"{path} is not read here", status=404)

    async def patch(self, path: str, *_: object) -> None:
        self.opened[path.rsplit("/", 1)[1]] = time.process_time()

    def record(self, *_: object, **__: object) -> None:
        """Drop an Event."""


class Heart:
    """A task that records the longest time for which the event loop was blocked."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def beat(self) -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, time.process_time() - before)


async def figures(count: int, nodes: int) -> dict[str, float]:
    """Return the measured figures in seconds."""
    placer, heart = Placer(nodes), Heart()
    many = [gated("many", number, percent=60, mebibytes=2000 + number) for number in range(count)]
    task = asyncio.create_task(heart.beat())
    await placer.round(many)  # fills the caches of the first round
    heart.longest = 0.0
    alone = await placer.round(many)
    late = gated("late", 0, percent=20, mebibytes=1000)
    under_way = asyncio.create_task(placer.round(many))
    await asyncio.sleep(0)  # the pod arrives after the round has started without it
    came = time.process_time()
    placer.scheduler.pod_created(late)
    rest = await under_way
    breath = min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, rest))
    await placer.round([*many, late])
    task.cancel()
    return {"round": alone, "delay": placer.opened["late-000000"] - came + breath, "standstill": heart.longest}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=300)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    few = asyncio.run(figures(FEW, arguments.nodes))
    many = asyncio.run(figures(arguments.pods, arguments.nodes))
    print(f"{'':12} {FEW:>8} pods {arguments.pods:>8} pods")
    for name, seconds in many.items():
        print(f"{name:12} {few[name]:11.3f} s {seconds:11.3f} s")
    for name, seconds in many.items():
        figure = {"figure": f"gated.{name}", "value": round(seconds, 3), "unit": "s", "against": f"{FEW} pods"}
        goal = {"goal": GOAL_SECONDS} if name == "delay" else {}
        print(json.dumps({**figure, "ratio": round(seconds / few[name], 1), **goal}))


if __name__ == "__main__":
    main()
