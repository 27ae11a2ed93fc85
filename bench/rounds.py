"""What a round of the placer costs the event loop when nothing is to be done: 32,000 pods with shares by default.

The elected placer shares its process with a webhook: as long as a piece of its round takes, no review is answered.
Timed, by the processor's time: each piece of a round in which nothing has changed, of one in which one in a thousand
pods has, and what it takes to look at everything, which is the baseline. Prints a table for people, then one JSON
object a line per figure.

Run: python bench/rounds.py [--pods 32000]
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import time
from collections.abc import Callable
from typing import Any

from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode
from webhook.books import bookkeeping, sightings
from webhook.books.changes import Changes
from webhook.ledger import adoption
from webhook.placer import backfill, beaten, gang, stuck
from webhook.placer.copies import trimmed
from webhook.placer.wishes import Wishes

GIB = 2**30
GPUS = 8
SHARES = 16  # of a node
GOAL_MS = 20.0
REPEATS = 3

Json = dict[str, Any]


def share(number: int, node: str, uuid: str) -> tuple[Json, Allocation]:
    """A pod that runs, and what it holds."""
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
    return trimmed(made), Allocation(f"a{number}", holder, (GivenShare(("main",), (uuid,), 50, 100, 40 * GIB),))


class Round:
    """The passes over pods and nodes, as the placer makes them."""

    def __init__(self, count: int) -> None:
        self.nodes: list[GpuNode] = []
        self.pods: list[Json] = []
        for at in range(count // SHARES):
            name = f"n{at:05d}"
            cards = tuple(Gpu(f"GPU-{at}-{index}", index, "H100", 80 * GIB, (9, 0)) for index in range(GPUS))
            made = [share(at * SHARES + one, name, cards[one // 2].uuid) for one in range(SHARES)]
            self.pods += [one for one, _ in made]
            self.nodes.append(GpuNode(name, cards, tuple(entry for _, entry in made)))
        self.changes, self.known = Changes(), bookkeeping.Known()
        self.sightings, self.wishes = sightings.Sightings(60.0), Wishes()
        self.arranger, self.passes = gang.Arranger(), backfill.Passes()
        for one in self.pods:
            self.changes.pod(None, one)

    def whole(self) -> None:
        """Everything is looked at."""
        bookkeeping.judge(sightings.Sightings(60.0).timed(self.nodes, now=0.0), self.pods, now=0.0)
        adoption.lost(self.nodes, self.pods)
        adoption.homeless({node.name for node in self.nodes}, self.pods)

    def books(self) -> None:
        """What has changed is."""
        touched = self.changes.take(self.nodes, also=self.known.unconfirmed)
        nodes = self.sightings.timed(touched.nodes, now=0.0)
        self.known.renew(nodes, touched.names, bookkeeping.judge(nodes, touched.pods, now=0.0))
        adoption.lost(touched.nodes, touched.pods)
        there = {node.name for node in self.nodes}
        adoption.homeless(there, self.changes.placed_beside(there))

    def change(self, every: int) -> None:
        """Of so many pods one is another version of itself."""
        for at in range(0, len(self.pods), every):
            before = self.pods[at]
            metadata = {**before["metadata"], "resourceVersion": str(int(before["metadata"]["resourceVersion"]) + 1)}
            self.pods[at] = {**before, "metadata": metadata}
            self.changes.pod(before, self.pods[at])
            node = self.nodes[at // SHARES]
            self.nodes[at // SHARES] = dataclasses.replace(node)

    def pieces(self) -> dict[str, Callable[[], object]]:
        return {
            "books": self.books,
            "wishes (pauses every 16 nodes)": lambda: list(self.wishes.search(self.nodes, self.pods)),
            "gated": lambda: self.arranger.arrange(self.pods),
            "passes": lambda: self.passes.count(self.pods, ()),
            "stuck": lambda: [one for one in self.pods if stuck.why(one) is not None],
            "beaten": lambda: beaten.find(self.nodes, self.pods),
        }


def milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=32_000)
    there = Round(parser.parse_args().pods)
    pieces = there.pieces()
    for work in pieces.values():
        work()  # what is looked at for the first time
    gc.collect()
    gc.freeze()  # as the webhook does when it has read what there is
    whole = min(milliseconds(there.whole) for _ in range(REPEATS))
    found: dict[str, tuple[float, float]] = {}
    for name, work in pieces.items():
        found[name] = min(milliseconds(work) for _ in range(REPEATS)), 0.0
    changed: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in range(REPEATS):
        there.change(every=1000)
        for name, work in pieces.items():
            changed[name].append(milliseconds(work))
    print(f"{'piece':32} {'nothing new':>12} {'one in 1000':>12}")
    print(f"{'books, all looked at':32} {whole:9.1f} ms")
    for name, (idle, _) in found.items():
        print(f"{name:32} {idle:9.1f} ms {min(changed[name]):9.1f} ms")
    for name, (idle, _) in found.items():
        for when, value in (("idle", idle), ("changed", min(changed[name]))):
            figure = {"figure": f"round.{name}.{when}", "value": round(value, 2), "unit": "ms", "against": "all"}
            print(json.dumps({**figure, "ratio": round(value / whole, 3), "goal": GOAL_MS}))


if __name__ == "__main__":
    main()
