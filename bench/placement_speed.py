"""Time of a placement decision in a large cluster: 10,000 nodes × 8 GPUs with 100,000 allocations by default.

Requests of mixed shapes (shares by compute and by memory, several GPUs, a model, two containers, CPU and memory of the
host) are placed one after another. Each allocation is written, the node's view is updated and another allocation is
released, so every decision follows changes. The decision, the update of a view, learning a mix, and a refusal are timed
separately. They are compared with the goals; the decision also with the plain reference on the same nodes. `.cpu` is
the CPU time of the same decisions, which a busy machine does not stretch. Prints a table for people, then one JSON
object a line per figure.

Run: python bench/placement_speed.py [--nodes 10000] [--allocations 100000] [--decisions 5000] [--shapes 54]
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import random
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from gpushare import ledger, placement, policies
from gpushare.allocation import Allocation, Memory, PodRef, Share
from gpushare.daemon import lifecycle
from gpushare.gpunode import Gpu, GpuNode
from gpushare.mix import Host, Mix, classes_of
from gpushare.placement import NodeView, Placement
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.refusal import Refusal
from gpushare.request import Constraints, Demand, Request

GIB = 2**30
OTHERS = sorted(policies.POLICIES.keys() - {policies.DEFAULT})  # policies that ignore the mix
GPUS = 8
ROOM = Room(128_000, 1024 * GIB)
KINDS = (("NVIDIA A100-SXM4-80GB", 80, (8, 0)), ("NVIDIA H100 80GB HBM3", 80, (9, 0)), ("NVIDIA L4", 24, (8, 9)))
GOALS = {
    "decision.p50": 1.0,
    "decision.p99": 5.0,
    "decision.p99.cpu": 5.0,
    "update.p99": 1.0,
    "refusal": 2.0,
    "rss": 500.0,
}

_Found = TypeVar("_Found")


def pod_request(percent: int, gib: int | None = None, *, gpus: int = 1, models: tuple[str, ...] = ()) -> Request:
    memory = Memory(percent=percent) if gib is None else Memory(bytes=gib * GIB)
    return Request((Demand(("main",), Share(percent, 100, memory), gpus),), Constraints(models=models))


SMALL = [pod_request(percent) for percent in (5, 10, 20, 25, 33, 50)] + [pod_request(0, gib) for gib in (2, 4, 8)]
SHAPES = [
    *SMALL,
    *(pod_request(percent, gib) for percent, gib in ((10, 2), (10, 8), (25, 10), (50, 20))),
    *(pod_request(percent) for percent in (75, 100)),
    *(pod_request(100, gpus=gpus) for gpus in (2, 4)),
    *(pod_request(50, models=(model,)) for model in ("*A100*", "*H100*", "*L4*")),
    Request((Demand(("a",), Share(50, 100, Memory(percent=50))), Demand(("b",), Share(25, 100, Memory(percent=25))))),
]
HOSTS = [Host(cpus * 1000, 4 * cpus * GIB) for cpus in (1, 2, 4)]
Asked = tuple[Request, Host]
IMPOSSIBLE = pod_request(100, gpus=GPUS + 1)


class Cluster:
    """The ledger in memory, and the fleet that gets each change."""

    def __init__(self) -> None:
        self.nodes: dict[str, GpuNode] = {}
        self.fleet = Fleet()
        self.held: collections.deque[tuple[str, str]] = collections.deque()
        self._ids = itertools.count()
        self.update_seconds: list[float] = []

    def fill(self, nodes: int, allocations: int, draw: random.Random) -> None:
        """Place random shares on random GPUs, as after long use."""
        for number in range(nodes):
            model, gib, capability = KINDS[number % len(KINDS)]
            name = f"gpu-node-{number:05}"
            gpus = tuple(
                Gpu(f"GPU-{draw.getrandbits(64):016x}-{index}", index, model, gib * GIB, capability, index // 4)
                for index in range(GPUS)
            )
            self.nodes[name] = GpuNode(name, gpus)
        names = list(self.nodes)
        for number in range(allocations):
            node = self.nodes[names[number * nodes // allocations]]
            request = draw.choice(SMALL)
            placed = placement.place([NodeView.from_node(node)], request, policy=draw.choice(OTHERS))
            if isinstance(placed, Placement):
                self.nodes[node.name] = ledger.reserve(node, self.entry(placed, request))
        for node in self.nodes.values():
            self.fleet.update(NodeView.from_node(node), room=ROOM)

    def entry(self, placed: Placement, request: Request) -> Allocation:
        identity = f"{next(self._ids):020x}"
        self.held.append((placed.node, identity))
        pod = PodRef("team-a", f"trainer-{identity}", f"{identity}-uid-of-the-pod")
        return placed.allocation(request, allocation_id=identity, pod=pod, reserved_until=None)

    def write(self, node: GpuNode) -> None:
        """Apply a changed object as an informer does, and time it."""
        self.nodes[node.name] = node
        seconds, _ = timed(lambda: self.fleet.update(NodeView.from_node(node), room=ROOM))
        self.update_seconds.append(seconds)

    def release_oldest(self, draw: random.Random) -> None:
        self.held.rotate(-draw.randrange(len(self.held)))
        name, identity = self.held.popleft()
        self.write(ledger.release(self.nodes[name], [identity]))


def shapes(count: int, draw: random.Random) -> list[Asked]:
    """Return `count` distinct shapes: SHAPES with HOSTS, then odd sizes, equally many of each kind."""
    drawn = dict.fromkeys(itertools.product(SHAPES, HOSTS))
    while len(drawn) < count:
        request, host = draw.choice(SHAPES), draw.choice(HOSTS)
        demands = tuple(_odd(demand, draw) for demand in request.demands)
        cpu_milli = host.cpu_milli - 50 * draw.randrange(20)
        drawn[dataclasses.replace(request, demands=demands), Host(cpu_milli, host.memory_bytes)] = None
    return list(drawn)[:count]


def _odd(demand: Demand, draw: random.Random) -> Demand:
    percent = max(0, demand.share.request_percent - draw.randrange(5))
    return dataclasses.replace(demand, share=dataclasses.replace(demand.share, request_percent=percent))


def timed(work: Callable[[], _Found]) -> tuple[float, _Found]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def milliseconds(seconds: Sequence[float], part: float) -> float:
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--allocations", type=int, default=100_000)
    parser.add_argument("--decisions", type=int, default=5_000)
    parser.add_argument("--shapes", type=int, default=len(SHAPES) * len(HOSTS), help="number of distinct requests")
    parser.add_argument("--seed", type=int, default=42)
    chosen = parser.parse_args()
    draw = random.Random(chosen.seed)
    cluster = Cluster()
    cluster.fill(chosen.nodes, chosen.allocations, draw)
    lifecycle.freeze_objects()  # as the webhook does after its first list
    pods = ((draw.choice(SHAPES), draw.choice(HOSTS)) for _ in range(1000))
    mix = Mix.from_counts(collections.Counter(asked for pod in pods for asked in classes_of(*pod)), pods=1000)
    figures = {"learn": 1000 * timed(lambda: cluster.fleet.learn(mix))[0]}
    asked = shapes(chosen.shapes, random.Random(chosen.seed))
    figures |= decide(cluster, asked, chosen.decisions, draw)
    figures |= first_by_policy(cluster)
    refusals = [timed(lambda: cluster.fleet.place(IMPOSSIBLE)) for _ in range(20)]
    if not isinstance(refusals[0][1], Refusal):
        raise SystemExit("a request for more GPUs than any node has was placed")
    figures["refusal"] = 1000 * statistics.median(seconds for seconds, _ in refusals)
    figures["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    views = list(cluster.fleet.views())
    reference = min(timed(lambda: placement.place(views, SHAPES[0]))[0] for _ in range(3))
    held = sum(len(node.allocations) for node in cluster.nodes.values())
    print_all(figures, 1000 * reference, f"{chosen.nodes} nodes × {GPUS} GPUs, {held} allocations")


def first_by_policy(cluster: Cluster) -> dict[str, float]:
    """Measure the first decision for new shapes with each policy in turn."""
    first: dict[str, list[float]] = {policy: [] for policy in sorted(policies.POLICIES)}
    for number, request in itertools.product(range(10), SHAPES):
        for policy, seconds in first.items():
            asked = dataclasses.replace(request, policy=policy)
            seconds.append(timed(lambda: cluster.fleet.place(asked, host=Host(number + 1, 0)))[0])  # noqa: B023  at once
    return {f"decision.first-of-a-shape.{policy}.p50": milliseconds(seconds, 0.5) for policy, seconds in first.items()}


def decide(cluster: Cluster, asked: Sequence[Asked], decisions: int, draw: random.Random) -> dict[str, float]:
    """Place, write and release; count first and later decisions for a shape separately."""
    first: list[float] = []
    later: list[float] = []
    busy: list[float] = []
    known: set[tuple[Request, Host]] = set()
    for _ in range(decisions):
        request, host = draw.choice(asked)
        begin = time.thread_time()
        seconds, placed = timed(lambda: cluster.fleet.place(request, host=host))  # noqa: B023  called at once
        busy.append(time.thread_time() - begin)
        (later if (request, host) in known else first).append(seconds)
        known.add((request, host))
        if isinstance(placed, Placement):
            cluster.write(ledger.reserve(cluster.nodes[placed.node], cluster.entry(placed, request)))
            cluster.release_oldest(draw)
    after = []
    for _ in range(200):  # the same shape repeatedly: only the node that has just changed is scored
        cluster.release_oldest(draw)
        after.append(timed(lambda: cluster.fleet.place(SHAPES[0]))[0])
    return {
        "decision.p50": milliseconds(first + later, 0.5),
        "decision.p99": milliseconds(first + later, 0.99),
        "decision.p50.cpu": milliseconds(busy, 0.5),
        "decision.p99.cpu": milliseconds(busy, 0.99),
        "decision.first-of-a-shape.p50": milliseconds(first, 0.5),
        "decision.after-one-update.p50": milliseconds(after[1:], 0.5),
        "update.p50": milliseconds(cluster.update_seconds, 0.5),
        "update.p99": milliseconds(cluster.update_seconds, 0.99),
    }


def print_all(figures: dict[str, float], reference: float, title: str) -> None:
    print(f"{title}\n{'FIGURE':<34}{'VALUE':>12}{'GOAL':>10}")
    for name, value in figures.items():
        unit = "MB" if name == "rss" else "ms"
        goal = f"{GOALS[name]:g} {unit}" if name in GOALS else "-"
        print(f"{name:<34}{value:>9.3f} {unit}{goal:>10}")
    print(f"{'reference, one decision':<34}{reference:>9.3f} ms{'-':>10}\n")
    for name, value in figures.items():
        entry: dict[str, object] = {"figure": f"placement.{name}", "value": round(value, 3)}
        entry["unit"] = "MB" if name == "rss" else "ms"
        if name in GOALS:
            entry |= {"against": "goal", "ratio": round(value / GOALS[name], 4)}
        print(json.dumps(entry))
    ratio = figures["decision.p50"] / reference
    entry = {"figure": "placement.decision.p50-by-reference", "value": round(figures["decision.p50"], 3), "unit": "ms"}
    print(json.dumps(entry | {"against": "reference", "ratio": round(ratio, 6)}))


if __name__ == "__main__":
    main()
