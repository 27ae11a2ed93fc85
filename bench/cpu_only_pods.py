"""The cost of pods without a GPU on nodes with GPUs: kube-scheduler spreads them there, which leaves GPUs without CPU.

The protocol is that of `placement_quality.py`: the part of all GPUs that is unallocated once the arrived pods have
requested 100 % of them. gpushare places the pods with shares. The other pods are placed by gpushare too, as in the
published experiments; by kube-scheduler's default scores; or by these scores with openb's nodes without GPUs added,
with and without the taint `nvidia.com/gpu:PreferNoSchedule` on the GPU nodes.

Run: python bench/cpu_only_pods.py --openb DIRECTORY [--traces default,gpuspec20] [--seeds 42,43,44]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from openb import own_policies, trace
from openb.kube_scheduler import BesideKubeScheduler
from openb.trace import Node
from tabulate import tabulate

POLICY = "fragmentation"
Form = Callable[[Sequence[Node], Sequence[Node], int], trace.Scheduler]
FORMS: dict[str, Form] = {
    "by gpushare": lambda nodes, _others, _seed: own_policies.Gpushare(POLICY, nodes),
    "by kube-scheduler": lambda nodes, _others, seed: BesideKubeScheduler(
        own_policies.Gpushare(POLICY, nodes), nodes, (), seed, is_tainted=False
    ),
    "with nodes without GPUs": lambda nodes, others, seed: BesideKubeScheduler(
        own_policies.Gpushare(POLICY, nodes), nodes, others, seed, is_tainted=False
    ),
    "with these, and the taint": lambda nodes, others, seed: BesideKubeScheduler(
        own_policies.Gpushare(POLICY, nodes), nodes, others, seed, is_tainted=True
    ),
}


def unallocated(scheduler: trace.Scheduler, pods: Sequence[trace.Pod], gpus: int) -> float:
    """Return the percentage of the GPUs that is unallocated once 100 % has been requested."""
    asked = allocated = 0.0
    for pod in pods:
        if asked + pod.size > 100 * gpus:
            break
        asked += pod.size
        if scheduler.place(pod) is not None:
            allocated += pod.size
    return 100 - allocated / gpus


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--openb", type=Path, required=True, help="directory with the openb lists, .csv or .csv.gz")
    parser.add_argument("--traces", type=lambda text: text.split(","), default=["default"])
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[42, 43, 44])
    chosen = parser.parse_args()
    nodes = trace.nodes(chosen.openb)
    others = [node for node in trace.nodes(chosen.openb, of="all") if not node.gpus]
    gpus = sum(node.gpus for node in nodes)
    rows = []
    for name in chosen.traces:
        listed = trace.pods(chosen.openb, name)
        left = {
            form: [
                unallocated(make(nodes, others, seed), trace.fill(listed, gpus, seed), gpus) for seed in chosen.seeds
            ]
            for form, make in FORMS.items()
        }
        rows.append([name, *(f"{statistics.mean(cells):.2f}" for cells in left.values())])
        for form, cells in left.items():
            figure = {"figure": f"cpu-only.{name}.{form.replace(' ', '-')}", "value": round(statistics.mean(cells), 2)}
            print(json.dumps({**figure, "unit": "%", "against": None, "ratio": None}), flush=True)
    print(f"\nGPUs not allocated (%), {len(nodes)} nodes with GPUs, {len(others)} without")
    print(tabulate(rows, headers=["pods without a GPU are placed", *FORMS]))


if __name__ == "__main__":
    main()
