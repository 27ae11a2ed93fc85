"""The arrays of `Fleet` against the readable reference made incremental: a heap a shape, and only changed nodes again.

Both place the same requests on the same cluster, one after the other in one process. Nodes that are equal are not
merged. Times are of the processor. Prints a line a form; memory is what the decisions have added.

Run: python bench/placement_readable.py [--nodes 1000] [--shapes 54] [--decisions 800] [--memory]
"""

from __future__ import annotations

import argparse
import collections
import heapq
import random
import time
import tracemalloc

from placement_speed import Asked, Cluster, milliseconds, shapes

from gpushare import ledger, policies
from gpushare.allocation import GivenShare
from gpushare.mix import Host, Mix, classes_of
from gpushare.placement import NodeView, Placement, reference
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.placement.request_key import RequestKey
from gpushare.request import Request

Entry = tuple[float, str, int, tuple[GivenShare, ...]]  # cost, node, how often it had changed, shares


class HeapFleet(Fleet):
    """The reference, kept by shape of request. CPU and memory of the nodes are not looked at."""

    def __init__(self) -> None:
        super().__init__()
        self._now: dict[str, NodeView] = {}
        self._log: list[str] = []  # nodes in the order of their changes
        self._shapes: dict[RequestKey, tuple[list[Entry], collections.Counter[str]]] = {}
        self._seen: dict[RequestKey, int] = {}

    def update(self, view: NodeView, *, room: Room | None = None) -> None:  # noqa: ARG002
        self._now[view.node.name] = view
        self._log.append(view.node.name)

    def place_by_heap(self, request: Request, host: Host) -> Placement | None:
        key = RequestKey.of(request, policy=policies.DEFAULT, host=host)
        cost = policies.POLICIES[key.policy].cost
        heap, changes = self._shapes.setdefault(key, ([], collections.Counter()))
        new: list[Entry] = []
        for name in set(self._log[self._seen.get(key, 0) :]):
            changes[name] += 1
            found = reference._place_on(self._now[name], request, cost, None, [])
            if found is not None:
                new.append((found[0], name, changes[name], found[1]))
        self._seen[key] = len(self._log)
        heap.extend(new)
        heapq.heapify(heap)
        while heap:
            _, name, change, shares = heap[0]
            if changes[name] == change:
                return Placement(name, shares)
            heapq.heappop(heap)
        return None


def play(fleet: Fleet, asked: list[Asked], arguments: argparse.Namespace) -> str:
    draw, cluster = random.Random(arguments.seed), Cluster()
    cluster.fleet = fleet
    cluster.fill(arguments.nodes, 10 * arguments.nodes, draw)
    if not isinstance(fleet, HeapFleet):
        pods = [draw.choice(asked) for _ in range(1000)]
        fleet.learn(Mix.of(collections.Counter(kind for pod in pods for kind in classes_of(*pod)), pods=1000))
    if arguments.memory:
        tracemalloc.start()
    first: list[float] = []
    later: list[float] = []
    seen: set[Asked] = set()
    draw = random.Random(arguments.seed + 1)
    for _ in range(arguments.decisions):
        request, host = draw.choice(asked)
        begin = time.thread_time()
        found = fleet.place_by_heap(request, host) if isinstance(fleet, HeapFleet) else fleet.place(request, host=host)
        (later if (request, host) in seen else first).append(time.thread_time() - begin)
        seen.add((request, host))
        if isinstance(found, Placement):
            cluster.write(ledger.reserve(cluster.nodes[found.node], cluster.entry(found, request)))
            cluster.release_oldest(draw)
    times = f"p50 {milliseconds(first + later, 0.5):.2f}, p99 {milliseconds(first + later, 0.99):.2f}"
    if not arguments.memory:
        return f"{times}, first of a shape {milliseconds(first, 0.5):.2f} ms"
    added = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    return f"{added:.1f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--shapes", type=int, default=54)
    parser.add_argument("--decisions", type=int, default=800)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--memory", action="store_true", help="measure memory instead, which makes all of it slower")
    arguments = parser.parse_args()
    asked = shapes(arguments.shapes, random.Random(arguments.seed))
    for name, fleet in (("heaps", HeapFleet()), ("arrays", Fleet())):
        print(
            f"{arguments.nodes} nodes, {arguments.shapes} shapes, {name}: {play(fleet, asked, arguments)}", flush=True
        )


if __name__ == "__main__":
    main()
