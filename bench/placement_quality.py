"""How much of the GPUs placement leaves unallocated: gpushare and known policies, on the public openb lists.

Data: the node list and the pod lists of Alibaba's cluster-trace-gpu-v2023 ("openb"); download them first, or measure
only `random` worlds.

Protocol (`openb.trace`): the figure is the part of all GPUs that is unallocated once the arrived pods have requested
100 % of them, and 130 %. `--churn LOAD` adds the mean over time with pods that finish, and the part of the demand that
is rejected. gpushare's figures come from the product's own Fleet, which learns the mix from arriving pods; FGD knows it
in advance. Pods without GPUs are placed by the same policy, as in the published experiments. Prints tables for people,
then one JSON object a line per figure.

`worlds` are clusters and demands unlike the published ones, `random` 32 random ones (`openb.worlds`). In
`LIST+kube-scheduler`, kube-scheduler's default scores place the pods without GPUs; in `LIST+nodes` they may use openb's
nodes without GPUs as well; in `LIST+taint` the GPU nodes also have the taint PreferNoSchedule. `regression` are the
lists and worlds to measure with every change of the engine.

Run: python bench/placement_quality.py [--openb DIRECTORY] [--traces default,gpushare60,worlds] [--seeds 42,43,44]
    [--policies fragmentation,fgd,best-fit] [--churn 0.9] [--plot FILE.svg] [--jobs 2]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import heapq
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from openb import known_policies, own_policies, trace, worlds
from openb.kube_scheduler import BesideKubeScheduler
from openb.links import Links

from gpushare import policies

OWN = tuple(policies.POLICIES)
AGAINST = "fgd"
DEFAULT_POLICIES = ("fragmentation", "fgd", "fgd-fuller", "best-fit", "first-fit")
# Whether kube-scheduler may use openb's nodes without GPUs as well, and whether the GPU nodes have the taint.
FORMS = {"kube-scheduler": (False, False), "nodes": (True, False), "taint": (True, True)}
REGRESSION = (
    *("default", "gpushare60", "multigpu50", "gpuspec25", "gpuspec33", "default+kube-scheduler", "default+taint"),
    *("one-sided-full", "then-fours-full", "memory-first"),
)
WARM_UP, LIFETIMES = 2.0, 5.0  # of churn, in mean lifetimes
POINTS = tuple(percent / 100 for percent in range(0, 131, 2))


@dataclasses.dataclass(frozen=True)
class Task:
    directory: Path | None
    pods: str  # the name of a pod list
    policy: str
    seed: int
    churn: float | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """Parts of all GPUs, 0 to 1. `curve`: unallocated at each of POINTS; empty for churn.

    linked_pairs, linked_fours: the part of the pods placed with 2 and 4 GPUs whose GPUs are all linked; NaN without
    such pods.
    """

    task: Task
    unallocated: float
    unallocated_at_130: float = 0.0
    rejected: float = 0.0
    linked_pairs: float = math.nan
    linked_fours: float = math.nan
    curve: tuple[float, ...] = ()


def is_world(name: str) -> bool:
    return name in worlds.WORLDS or name in worlds.RANDOM


def run(task: Task) -> Result:
    """Measure one pod list, policy and seed."""
    listed, _, form = task.pods.partition("+")
    directory = task.directory or Path()
    if is_world(task.pods):
        nodes, pods = worlds.load(task.directory, task.pods, task.seed)
    else:
        nodes, pods = trace.nodes(directory), trace.pods(directory, listed)
    gpus = sum(node.gpus for node in nodes)
    ours = (
        own_policies.Gpushare(task.policy, nodes)
        if task.policy in OWN
        else known_policies.KnownPolicy(task.policy, nodes, pods, task.seed)
    )
    scheduler: trace.Scheduler = ours
    if form:
        has_others, is_tainted = FORMS[form]
        others = [node for node in trace.nodes(directory, of="all") if has_others and not node.gpus]
        scheduler = BesideKubeScheduler(ours, nodes, others, task.seed, is_tainted=is_tainted)
    if task.churn is None:
        arriving = pods if is_world(task.pods) else trace.fill(pods, gpus, task.seed)
        return fill(task, scheduler, arriving, 100 * gpus, Links(nodes))
    arrivals = trace.churn(pods, gpus, task.seed, load=task.churn, lifetimes=LIFETIMES)
    return churn(task, scheduler, arrivals, 100 * gpus, Links(nodes))


def fill(task: Task, scheduler: trace.Scheduler, pods: Iterable[trace.Pod], total: int, links: Links) -> Result:
    """Place arriving pods; `total` is in percent of a GPU."""
    arrived = allocated = 0.0
    curve: list[float] = []
    at_100: float | None = None
    for pod in pods:
        if at_100 is None and arrived + pod.size > total:
            at_100 = 1 - allocated / total
        while len(curve) < len(POINTS) and arrived + pod.size > POINTS[len(curve)] * total:
            curve.append(1 - allocated / total)
        arrived += pod.size
        placed = scheduler.place(pod)
        if placed is not None:
            allocated += pod.size
            links.add(placed)
    left = 1 - allocated / total
    curve += [left] * (len(POINTS) - len(curve))
    return Result(
        task,
        left if at_100 is None else at_100,
        left,
        1 - allocated / arrived,
        links.part(2),
        links.part(4),
        tuple(curve),
    )


def churn(
    task: Task, scheduler: trace.Scheduler, arrivals: Iterable[trace.Arrival], total: int, links: Links
) -> Result:
    """Place pods that finish again, and return means over the time after the warm-up."""
    running: list[tuple[float, int, trace.Pod, trace.Placed]] = []
    now, allocated, free, asked, turned_away = 0.0, 0.0, 0.0, 0.0, 0.0
    for number, arrival in enumerate(arrivals):
        while running and running[0][0] <= arrival.time:
            until, _, pod, held = heapq.heappop(running)
            free += (total - allocated) * max(0.0, until - max(now, WARM_UP))
            now = until
            scheduler.remove(pod, held)
            allocated -= pod.size
        free += (total - allocated) * max(0.0, arrival.time - max(now, WARM_UP))
        now = arrival.time
        placed = scheduler.place(arrival.pod)
        if placed is not None:
            heapq.heappush(running, (arrival.until, number, arrival.pod, placed))
            allocated += arrival.pod.size
        if now > WARM_UP:
            asked += arrival.pod.size
            if placed is None:
                turned_away += arrival.pod.size
            else:
                links.add(placed)
    left = free / total / (now - WARM_UP)
    return Result(task, left, 0.0, turned_away / asked, links.part(2), links.part(4))


def results(tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Yield results in the order of the tasks; progress goes to stderr."""
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        for number, result in enumerate(pool.map(run, tasks), 1):
            print(f"\r{number}/{len(tasks)}", end="", file=sys.stderr, flush=True)
            yield result
    print(file=sys.stderr)


def table(title: str, cells: dict[tuple[str, str], list[float]], policies: Sequence[str]) -> None:
    """Print trace × policy, mean ± standard deviation in percent."""
    print(f"\n{title}")
    print(f"{'TRACE':<14}" + "".join(f"{policy:>16}" for policy in policies))
    for pods in dict.fromkeys(pods for pods, _ in cells):
        shown = []
        for policy in policies:
            values = [100 * value for value in cells[pods, policy]]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            shown.append(f"{statistics.mean(values):6.2f} ± {spread:4.2f}".rjust(16))
        print(f"{pods:<14}" + "".join(shown))


def figures(name: str, cells: dict[tuple[str, str], list[float]]) -> None:
    """Print one JSON object a line."""
    for (pods, policy), values in cells.items():
        mean = 100 * statistics.mean(values)
        rival = statistics.mean(cells[pods, AGAINST]) * 100 if (pods, AGAINST) in cells else None
        entry = {"figure": f"placement.{name}.{pods}.{policy}", "value": round(mean, 3), "unit": "%"}
        if rival is not None and policy != AGAINST:
            entry |= {"against": AGAINST, "ratio": round(mean / rival, 4) if rival else None}
        print(json.dumps(entry))


def collect(measured: Iterable[Result], value: str) -> dict[tuple[str, str], list[float]]:
    """Return (pod list, policy) → one value a seed, without NaN."""
    cells: dict[tuple[str, str], list[float]] = {}
    for result in measured:
        cell: float = getattr(result, value)
        if not math.isnan(cell):
            cells.setdefault((result.task.pods, result.task.policy), []).append(cell)
    return cells


def plot(measured: Sequence[Result], path: Path, policies: Sequence[str]) -> None:
    """Plot the unallocated part of the GPUs over the arrived load, a panel for each trace."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    lists = list(dict.fromkeys(result.task.pods for result in measured))
    columns = min(3, len(lists))
    rows = -(-len(lists) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5 * columns, 3.6 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(lists) :]:
        axis.axis("off")
    for axis, pods in zip(axes.flat, lists, strict=False):
        for policy in policies:
            curves = [result.curve for result in measured if result.task.pods == pods and result.task.policy == policy]
            mean = [100 * statistics.mean(values) for values in zip(*curves, strict=True)]
            # All lines lie on the diagonal until most GPUs have been requested: show only the end.
            shown = [(100 * point, part) for point, part in zip(POINTS, mean, strict=True) if point >= 0.8]
            axis.plot(*zip(*shown, strict=True), label=policy, linewidth=2 if policy == OWN[0] else 1.2)
        axis.set_title(pods)
        axis.set_xlabel("GPUs asked for so far (% of all)")
        axis.set_ylabel("GPUs not allocated (%)")
        axis.set_ylim(0, 25)
        axis.grid(alpha=0.3)
    axes.flat[0].legend()
    figure.savefig(path)
    print(f"Plot: {path}")


def arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--openb", type=Path, help="directory with the openb lists, .csv or .csv.gz")
    parser.add_argument("--traces", type=words, help="names of pod lists and worlds (default: all lists, or random)")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in words(text)], default=[42, 43, 44])
    parser.add_argument("--policies", type=words, default=list(DEFAULT_POLICIES))
    parser.add_argument("--churn", type=float, help="also measure with pods that finish, at this load, such as 0.9")
    parser.add_argument("--plot", type=Path, help="write a plot to this file, .svg or .png")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    chosen = parser.parse_args()
    sets = {"worlds": list(worlds.WORLDS), "regression": list(REGRESSION), "random": list(worlds.RANDOM)}
    chosen.traces = chosen.traces or (trace.traces(chosen.openb) if chosen.openb else ["random"])
    chosen.traces = [name for word in chosen.traces for name in sets.get(word, [word])]
    if listed := [] if chosen.openb else [name for name in chosen.traces if name not in worlds.RANDOM]:
        parser.error(
            f"--traces {listed[0]} needs --openb, the directory with the openb lists; only random worlds do not"
        )
    for policy in chosen.policies:
        if policy not in (*OWN, *known_policies.POLICIES):
            parser.error(f"invalid --policies {policy}: must be of {', '.join((*OWN, *known_policies.POLICIES))}")
    return chosen


def main() -> None:
    chosen = arguments()
    tasks = [
        Task(chosen.openb, pods, policy, seed)
        for pods in chosen.traces
        for policy in chosen.policies
        for seed in chosen.seeds
    ]
    filled = list(results(tasks, chosen.jobs))
    left = (
        list(results([dataclasses.replace(task, churn=chosen.churn) for task in tasks], chosen.jobs))
        if chosen.churn
        else []
    )
    seeds = f"{len(chosen.seeds)} seeds, mean ± standard deviation"
    sets = [("unallocated", f"GPUs not allocated when 100 % have been asked for (%), {seeds}", filled, "unallocated")]
    sets.append(("unallocated-at-130", f"… when 130 % have been asked for (%), {seeds}", filled, "unallocated_at_130"))
    if left:
        sets.append(
            ("churn.unallocated", f"GPUs not allocated, pods leaving, load {chosen.churn:.0%}", left, "unallocated")
        )
        sets.append(("churn.rejected", f"Demand turned away, pods leaving, load {chosen.churn:.0%}", left, "rejected"))
    for when, measured in (("", filled), (" (pods leaving)", left)):
        name = "churn." if when else ""
        sets.append((f"{name}linked-pairs", f"Pods of 2 GPUs with both linked (%){when}", measured, "linked_pairs"))
        sets.append((f"{name}linked-fours", f"Pods of 4 GPUs with all linked (%){when}", measured, "linked_fours"))
    cells = [(name, title, cell) for name, title, measured, value in sets if (cell := collect(measured, value))]
    for _, title, cell in cells:
        table(title, cell, chosen.policies)
    if chosen.plot:
        plot(filled, chosen.plot, chosen.policies)
    print()
    for name, _, cell in cells:
        figures(name, cell)


if __name__ == "__main__":
    main()
