"""How long `kubectl gpushare top` takes and how much memory, from a saved cluster of 5,000 nodes × 8 GPUs.

Also what it takes to start at all, against a bare interpreter. Prints a table, then one JSON object a line per figure.
Run: `python bench/cli.py [NODES]`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushare import codec
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode

GIB = 2**30
GPUS = 8
ROUNDS = 3
SHARES = ((10, 4), (20, 16), (25, 20), (25, 16), (50, 40))  # per cent of compute, GiB


@dataclass(frozen=True)
class Run:
    seconds: float
    cpu_seconds: float
    memory_mib: float


def nodes(count: int) -> Iterator[GpuNode]:
    """Nodes of eight cards, most of them shared by two to four pods."""
    draw = random.Random(42)
    for number in range(count):
        name = f"gpu-node-{number:05}.cluster.local"
        cards = tuple(
            Gpu(
                f"GPU-{draw.getrandbits(64):016x}-{index}", index, "NVIDIA A100-SXM4-80GB", 80 * GIB, (8, 0), index // 4
            )
            for index in range(GPUS)
        )
        held = []
        for card in cards:
            room = 100
            for percent, gib in draw.sample(SHARES, 3):
                if percent <= room:
                    room -= percent
                    identity = f"{draw.getrandbits(64):016x}"
                    pod = PodRef("team-a", f"trainer-{identity}", f"{identity}-uid-of-the-pod")
                    held.append(
                        Allocation(identity, pod, (GivenShare(("main",), (card.uuid,), percent, 100, gib * GIB),))
                    )
        yield GpuNode(name, cards, tuple(held), config="default")


def save(path: Path, count: int) -> None:
    """Writes the nodes as the API server would send them: one line."""
    with path.open("w") as stream:
        stream.write('{"apiVersion":"gpushare.io/v1alpha1","items":[')
        for number, node in enumerate(nodes(count)):
            stream.write("," if number else "")
            json.dump(codec.to_document(node), stream, separators=(",", ":"))
        stream.write('],"kind":"GPUNodeList","metadata":{"resourceVersion":"1"}}')


def measure(*arguments: str) -> Run:
    """The best of a few runs."""
    best = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(arguments)} failed")
        best.append(Run(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    return min(best, key=lambda run: run.seconds)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    plugin = ("-m", "kubectl_gpushare")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "nodes.json"
        save(path, count)
        print(f"{count} nodes × {GPUS} GPUs, {path.stat().st_size / 1e6:.0f} MB; best of {ROUNDS}\n")
        runs = {
            "interpreter": measure("-c", "pass"),
            "version": measure(*plugin, "version"),
            "top.help": measure(*plugin, "top", "--help"),
            "top.gpus": measure(*plugin, "top", "--from", str(path)),
            "top.nodes": measure(*plugin, "top", "nodes", "--from", str(path)),
            "top.gpus.json": measure(*plugin, "top", "-o", "json", "--from", str(path)),
            "describe.node": measure(*plugin, "describe", "node", "gpu-node-00000.cluster.local", "--from", str(path)),
        }
    print(f"{'':<16}{'seconds':>9}{'CPU s':>8}{'MiB':>8}")
    for name, run in runs.items():
        print(f"{name:<16}{run.seconds:>9.2f}{run.cpu_seconds:>8.2f}{run.memory_mib:>8.0f}")
    print()
    bare = runs["interpreter"].seconds
    for name, run in runs.items():
        limit = 2.0 if name in {"top.gpus", "top.nodes"} else None
        against, ratio = ("goal", run.seconds / limit) if limit else ("bare interpreter", run.seconds / bare)
        figure = {"figure": f"cli.{name}", "value": round(run.seconds, 3), "unit": "s", "against": against}
        print(json.dumps({**figure, "ratio": round(ratio, 2)}))
        memory = {"figure": f"cli.{name}.memory", "value": round(run.memory_mib), "unit": "MiB", "against": "goal"}
        print(json.dumps({**memory, "ratio": round(run.memory_mib / 300, 2)}))


if __name__ == "__main__":
    main()
