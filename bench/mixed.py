"""Random pods on a node whose GPUs are shared in different ways: do ledger, NVML, audit and containers agree?

A node of the lab: a GPU for shares with the isolations arbiter, mps and none, one for mps and mig, one of fixed MIG
devices, one that is given whole. Pods arrive, end, are resized, and are killed; the agent, a replica of the webhook,
MPS servers and daemons are killed too. Every stored version of the ledger is checked for over-commitments. After some
steps the run waits until all that is known of each GPU agrees, for SETTLED_SECONDS at most; what still differs then is
a contradiction.

Run: `python bench/mixed.py [--minutes M | --steps N] [--seed S] [--lab DIRECTORY]`. Without --lab, it starts one with
CUDA 13.6, on which a killed MPS client does not hang the others. Prints a table, then one JSON object a figure; exits
with 1 if anything was counted.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tabulate
from burst import calls
from mixing import views, world
from steady import ledger_watch

from lab import access, cluster, gpushare, lab_layout
from tests.e2e import isolation_node
from tests.e2e.isolation_node import Node
from tests.e2e.observation import Observer

STEPS_A_ROUND = 8
SETTLED_SECONDS = 60.0
CONFIG = """
version: v1
flags: {migStrategy: mixed, plugin: {deviceListStrategy: cdi-annotations}}
sharing:
  fractional:
    resources:
    - {name: nvidia.com/gpu, devices: [0], isolations: [arbiter, mps, none]}
    - {name: nvidia.com/gpu, devices: [1], isolations: [mps, mig]}
mig: [{devices: [2], mig-enabled: true, mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}}]
"""


@contextlib.contextmanager
def lab(directory: Path | None) -> Iterator[tuple[access.Access, lab_layout.Layout]]:
    if directory is not None:
        where = lab_layout.load(directory)
        yield cluster.access_to(where), where
        return
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        try:
            made = cluster.up(Path(scratch) / "lab", node_count=1, owner=os.getpid())
            where = lab_layout.load(Path(scratch) / "lab")
            text = gpushare.NODE_DESCRIPTION.read_text().replace(gpushare.DRIVER_VERSION, "620.10")
            (Path(scratch) / "node.ini").write_text(text.replace("12.4", "13.6"))
            (node,) = where.nodes
            create: list[str | Path] = [
                gpushare.DRIVER / "simgpu",
                "create",
                "--node",
                node.name,
                Path(scratch) / "node.ini",
            ]
            subprocess.run([*create, where.gpus(node)], check=True, stdout=subprocess.DEVNULL)
            gpushare.install(where, made)
            yield made, where
        finally:
            cluster.down(Path(scratch) / "lab")


@contextlib.contextmanager
def configured(administrator: access.Access, where: lab_layout.Layout) -> Iterator[None]:
    """Give the node its configuration, and wait until it is in force; at the end, everything is as before."""
    (node,) = where.nodes
    before = world.percent_offered(administrator, node.name)
    with isolation_node.configuration(administrator, node.name, CONFIG):
        world.until(lambda: world.is_offered(administrator, node.name), "all resources offered")
        yield
    world.replace_restarted(administrator)  # another kill would make the kubelet wait before it restarts them
    gpushare.ready(where, administrator)
    world.until(lambda: world.percent_offered(administrator, node.name) == before, "the GPUs as before")


def settled(node: Node) -> tuple[views.Comparison, float]:
    """Wait until all views agree; return the last comparison, and how long it took."""
    began = time.monotonic()
    while (comparison := views.compare(node)).contradictions:
        if time.monotonic() > began + SETTLED_SECONDS:
            break
        time.sleep(0.5)
    return comparison, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--lab", type=Path, help="the directory of a lab with gpushare")
    options = parser.parse_args()
    counts, compared = collections.Counter[str](), collections.Counter[str]()
    found: list[str] = []
    waits: list[float] = []
    with lab(options.lab) as (administrator, where), configured(administrator, where):
        keys = where.certificates
        server = calls.Server(administrator.server, keys / "ca.crt", keys / "admin.crt", keys / "admin.key")
        watch = ledger_watch.LedgerWatch(server, where.etcd / "client.sock")
        watch.start()
        with administrator.namespace("mixed") as namespace:
            node = Node(where, Observer(administrator, namespace))
            random_world = world.World(node, options.seed)
            end = time.monotonic() + 60 * options.minutes
            while counts.total() < options.steps if options.steps else time.monotonic() < end:
                for _ in range(STEPS_A_ROUND):
                    counts[random_world.step()] += 1
                comparison, seconds = settled(node)
                print(*comparison.contradictions, sep="\n", end="", file=sys.stderr, flush=True)
                found += comparison.contradictions
                compared += comparison.compared
                waits.append(seconds)
            node.delete("--all")
            node.user.ledger_is_empty(seconds=SETTLED_SECONDS)
        watch.stop()
    figures = {
        "steps": counts.total(),
        "pods": random_world.created,
        "pods.placed": len(random_world.placed),
        "comparisons": len(waits),
        **{f"compared.{kind}": count for kind, count in sorted(compared.items())},
        "ledger.versions": watch.versions,
        "settled.longest": round(max(waits), 1),
        "over-commitments": len(watch.broken),
        "contradictions": len(found),
    }
    print(tabulate.tabulate(sorted(counts.items()), headers=("step", "times"), tablefmt="github"), end="\n\n")
    print(tabulate.tabulate(figures.items(), headers=("figure", "value"), tablefmt="github"))
    print(*sorted({*watch.broken, *found}), sep="\n")
    for name, value in figures.items():
        print(json.dumps({"figure": f"mixed.{name}", "value": value, "unit": "s" if "settled" in name else ""}))
    sys.exit(1 if watch.broken or found else 0)


if __name__ == "__main__":
    main()
