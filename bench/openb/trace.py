"""Alibaba's public GPU-sharing trace cluster-trace-gpu-v2023 ("openb"): its nodes, its pod lists, the protocol.

The protocol is that of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023): shuffle the pods by a seed, add random
ones of them until they request 130 % of the cluster's GPUs, and place them one after another; no pod finishes, and pods
that do not fit are dropped. `churn` gives pods exponential lifetimes instead, so that the mean demand is a given part
of the cluster.

Files, as published, gzip or not: `openb_node_list_gpu_node.csv`, `openb_node_list_all_node.csv`,
`openb_pod_list_NAME.csv`.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

MAX_LOAD = 1.3


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node. linked: the size of groups of consecutive GPUs joined by NVLink and near one NUMA node; 0: unknown."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str
    linked: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """A pod with `percent` of each of `gpus` GPUs, of one of `models` (sorted; empty: any).

    gpu_memory_percent: of each GPU's memory; None: the same part as of its compute.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int
    percent: int
    models: tuple[str, ...]
    gpu_memory_percent: int | None = None

    @property
    def memory_percent(self) -> int:
        """Return the percentage of each GPU's memory."""
        return self.percent if self.gpu_memory_percent is None else self.gpu_memory_percent

    @property
    def size(self) -> float:
        """Return the total percentage of GPUs: the mean of compute and memory."""
        return self.gpus * (self.percent + self.memory_percent) / 2


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """The number of a node, and the indexes of its GPUs."""

    node: int
    gpus: tuple[int, ...]


class Scheduler(Protocol):
    """A scheduler that tracks free capacity itself."""

    def place(self, pod: Pod) -> Placed | None: ...

    def remove(self, pod: Pod, placed: Placed) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that arrives at `time` and stays until `until`, both in mean lifetimes."""

    time: float
    until: float
    pod: Pod


def _rows(directory: Path, stem: str) -> list[dict[str, str]]:
    for path in (directory / f"{stem}.csv", directory / f"{stem}.csv.gz"):
        if path.exists():
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            return list(csv.DictReader(io.StringIO(text.decode())))
    raise SystemExit(f"{directory} has no {stem}.csv or {stem}.csv.gz: download the lists of cluster-trace-gpu-v2023")


def nodes(directory: Path, *, of: str = "gpu") -> list[Node]:
    """Return the nodes with GPUs; with `of` "all" also those without."""
    return [
        Node(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in _rows(directory, f"openb_node_list_{of}_node")
    ]


def traces(directory: Path) -> list[str]:
    """Return the names of the pod lists in the directory."""
    names = {
        path.name.split(".")[0].removeprefix("openb_pod_list_") for path in directory.glob("openb_pod_list_*.csv*")
    }
    return sorted(names)


def pods(directory: Path, trace: str) -> list[Pod]:
    """Return the pods of a list, in its order."""
    listed = []
    for row in _rows(directory, f"openb_pod_list_{trace}"):
        gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        if milli % 10:
            raise SystemExit(
                f"{trace}: {row['name']} asks for {milli} thousandths of a GPU, which is not a whole percent"
            )
        models = tuple(sorted({model for model in (row.get("gpu_spec") or "").split("|") if model}))
        listed.append(Pod(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, milli // 10 if gpus else 0, models))
    return listed


def fill(all_pods: Sequence[Pod], gpus: int, seed: int) -> list[Pod]:
    """Return the pods in order of arrival, until they have requested 130 % of the cluster's GPUs."""
    draw = random.Random(seed)
    order = list(all_pods)
    draw.shuffle(order)
    asked = sum(pod.size for pod in order)
    while asked < MAX_LOAD * 100 * gpus:
        pod = draw.choice(all_pods)
        order.append(pod)
        asked += pod.size
    return order


def churn(all_pods: Sequence[Pod], gpus: int, seed: int, *, load: float, lifetimes: float) -> Iterator[Arrival]:
    """Yield arrivals over this many mean lifetimes that request `load` of the cluster's GPUs on average."""
    draw = random.Random(seed)
    rate = load * 100 * gpus / (sum(pod.size for pod in all_pods) / len(all_pods))
    time = draw.expovariate(rate)
    while time < lifetimes:
        yield Arrival(time, time + draw.expovariate(1.0), draw.choice(all_pods))
        time += draw.expovariate(rate)
