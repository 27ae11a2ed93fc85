"""Results of `kubectl gpushare defrag` on a full cluster: openb nodes whose pods have requested 100 % of the GPUs.

With `--load 50` pods arrive only until they have requested half of the GPUs; `--planners empty-nodes` then has nodes to
free. The product's own placement places the pods as they arrive; pods that do not fit wait. Each planner gets the same
cluster; its plan is executed, and then all waiting pods are tried again. Prints a table for people, then one JSON
object a line per figure. Times are the CPU time of planning alone.

Run: python bench/defrag.py --openb DIRECTORY [--traces default,multigpu30] [--seeds 42] [--every 8]
    [--planners value,value-cpu,fewest,fewest-cpu,empty-nodes] [--load 100] [--moves 2] [--patience 120]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from openb import bound, objects, trace
from openb.objects import Objects
from tabulate import tabulate

from gpushare.defragmentation import goals, relocating
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.moves import DefragPlan
from gpushare.errors import LedgerError
from gpushare.placement import Placement
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World

Wanted = list[tuple[str, RequestingPod]]
Planner = Callable[[World, Wanted, int], DefragPlan]
PLANNERS: dict[str, Planner] = {
    "fewest": lambda world, wanted, _most: goals.make_room(world, wanted, Budgets.from_manifests([])),
    "value": lambda world, wanted, most: relocating.plan(world, wanted, Budgets.from_manifests([]), max_moves=most),
    "value-cpu": lambda world, wanted, most: relocating.plan(
        world, wanted, Budgets.from_manifests([]), max_moves=most, moves_cpu_only=True
    ),
    "fewest-cpu": lambda world, wanted, _most: goals.make_room(
        world, wanted, Budgets.from_manifests([]), moves_cpu_only=True
    ),
    "empty-nodes": lambda world, _wanted, most: goals.empty_nodes(world, Budgets.from_manifests([]), max_moves=most),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one plan. `before` and `after` are the unallocated percentage of the GPUs.

    bound: the lower bound for any plan, see `openb.bound`. empty: nodes without a share at first; emptied: how many
    more there are after the moves. moves: -1 if the planner ran out of time.
    """

    trace: str
    nodes: int
    pods: int
    planner: str
    moves: int
    waiting: int
    let_in: int
    before: float
    after: float
    bound: float
    empty: int
    emptied: int
    seconds: float


class _OutOfTimeError(Exception):
    pass


def results(chosen: argparse.Namespace) -> Iterator[Result]:
    nodes = trace.nodes(chosen.openb)[:: chosen.every]
    gpus = sum(node.gpus for node in nodes)
    for name in chosen.traces:
        for seed in chosen.seeds:
            arriving = _arriving(trace.fill(trace.pods(chosen.openb, name), gpus, seed), chosen.load * gpus)
            loaded = objects.load(nodes, arriving)
            there, waiting = ([arriving[objects.number(pod)] for pod in pods] for pods in (loaded.pods, loaded.waiting))
            least = bound.least_unallocated(nodes, there, waiting)
            for planner in chosen.planners:
                yield _result(chosen, name, planner, loaded, least)


def _arriving(pods: list[trace.Pod], total: int) -> list[trace.Pod]:
    arrived = 0.0
    chosen: list[trace.Pod] = []
    for pod in pods:
        if arrived + pod.size > total:
            return chosen
        arrived += pod.size
        chosen.append(pod)
    return chosen


def _result(chosen: argparse.Namespace, name: str, planner: str, loaded: Objects, least: float) -> Result:
    world = World(loaded.nodes, loaded.node_objects, [*loaded.pods], profile=loaded.profile)
    wanted = [(manifest["metadata"]["name"], RequestingPod.from_manifest(manifest)) for manifest in loaded.waiting]
    sharing = sum(len(node.allocations) for node in loaded.nodes)
    before, there, empty = _unallocated(world), _holders(world), _empty(world)
    started = time.process_time()
    moves = -1
    try:
        with _Patience(chosen.patience):
            plan = PLANNERS[planner](world, wanted, round(sharing * chosen.moves / 100))
            moves = len(plan.moves)
    except _OutOfTimeError:
        world = World(loaded.nodes, loaded.node_objects, [*loaded.pods], profile=loaded.profile)
    seconds = time.process_time() - started
    emptied = _empty(world) - empty
    for _, asked in wanted:
        if asked.manifest["metadata"]["uid"] not in _pods(world):
            placed = world.place(asked.manifest, asked.request)
            if isinstance(placed, Placement):
                world.assign(asked.manifest, asked.request, placed)
    let_in = _holders(world) - there
    after = _unallocated(world)
    return Result(
        trace=name,
        nodes=len(loaded.nodes),
        pods=sharing,
        planner=planner,
        moves=moves,
        waiting=len(wanted),
        let_in=let_in,
        before=before,
        after=after,
        bound=least,
        empty=empty,
        emptied=emptied,
        seconds=seconds,
    )


def _pods(world: World) -> set[str]:
    return {entry.pod.uid for view in world.views.values() for entry in view.node.allocations}


def _holders(world: World) -> int:
    return sum(len(view.node.allocations) for view in world.views.values())


def _empty(world: World) -> int:
    return sum(not view.node.allocations for view in world.views.values())


def _unallocated(world: World) -> float:
    used = [(used.request_percent, 1) for view in world.views.values() for used in view.used.values()]
    if any(percent > 100 for percent, _ in used):
        raise LedgerError("a GPU is over-committed")
    return 100 - sum(percent for percent, _ in used) / len(used)


class _Patience:
    """Raises `_OutOfTimeError` after a number of seconds of CPU time."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        def end(_signal: int, _frame: FrameType | None) -> None:
            raise _OutOfTimeError

        signal.signal(signal.SIGPROF, end)
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--openb", type=Path, required=True, help="directory with the openb lists, .csv or .csv.gz")
    parser.add_argument("--traces", type=lambda text: text.split(","), default=["default"])
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[42])
    parser.add_argument("--every", type=int, default=8, help="use every Nth node (8: 152 nodes, 1: 1,213)")
    parser.add_argument("--planners", type=lambda text: text.split(","), default=["value", "fewest"])
    parser.add_argument("--moves", type=float, default=2.0, help="maximum, in percent of the pods; `fewest` ignores it")
    parser.add_argument("--load", type=int, default=100, help="percent of the GPUs that the pods request")
    parser.add_argument("--patience", type=int, default=120, help="CPU seconds that a plan may take")
    chosen = parser.parse_args()
    rows = []
    for result in results(chosen):
        rows.append(result)
        print(result, file=sys.stderr, flush=True)
    print(tabulate([dataclasses.asdict(result) for result in rows], headers="keys", floatfmt=".2f"))
    for result in rows:
        name = f"defrag.{result.trace}.{result.nodes}.{result.planner}"
        for figure in ("moves", "let_in", "before", "after", "bound", "emptied", "seconds"):
            unit = {"moves": "moves", "let_in": "pods", "emptied": "nodes", "seconds": "s"}.get(figure, "%")
            print(json.dumps({"figure": f"{name}.{figure}", "value": round(getattr(result, figure), 3), "unit": unit}))


if __name__ == "__main__":
    main()
