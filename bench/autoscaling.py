"""How long scripted loads wait for nodes, and how many nodes they start compared with the minimum.

A real API server and scheduler, the webhook with demand pods, and the small autoscaler of the tests, which follows the
rules of Cluster Autoscaler's FAQ; a node boots in `--boot-seconds`. No cloud, kubelet or GPU is involved, so "running"
means bound. Each load starts from zero nodes. The minimum is a lower bound: the GPUs that the
pods request together, and that those requesting more than half of a GPU need each, over the GPUs of a node.
Prints a table for people, then one JSON object a line per figure.

Run (as root): python -m bench.autoscaling [--boot-seconds 2] [--loads NAME,...]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from gpushare import contract
from lab import cluster as lab_cluster
from tests import builders
from tests.autoscaler import NODES, Autoscaler, NodeGroup
from tests.config import manifests
from tests.webhook import conftest
from tests.webhook.conftest import Cluster
from tests.webhook.replica import Replica, until
from webhook.controllers.demand import demand_pods

COMPONENT: Final = manifests.CONFIG / "components" / "demand"
FLAGS: Final = (
    f"--demand-resource={contract.RESOURCE_PERCENT}",
    "--demand-products=NVIDIA-A100=80Gi",
    "--demand-max-gpus=64",
    "--reservation-seconds=2",  # also how long a placer that has just started keeps new GPUNodes closed
)
MAX_SECONDS: Final = 300.0

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Load:
    """Pods that are created at once, and the group whose nodes can be started."""

    pods: Callable[[], list[Json]]
    group: NodeGroup


def pod(name: str, **annotations: Any) -> Json:
    made = builders.pod(name, **annotations)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    return made


def mixed() -> list[Json]:
    sizes = ("0.7", "0.3", "0.5", "0.25", "0.25", "0.6", "0.4", "1")
    return [pod(f"p{number}", request=sizes[number % len(sizes)]) for number in range(24)]


LOADS: Final = {
    "halves": Load(lambda: [pod(f"p{number}", request="0.5") for number in range(6)], NodeGroup("single")),
    "mixed": Load(mixed, NodeGroup("quad", gpus=4, cpu="32")),
    "memory": Load(lambda: [pod(f"p{number}", memory="20Gi") for number in range(10)], NodeGroup("other")),
    "large": Load(
        lambda: (
            [pod(f"large{number}", gpus="4") for number in range(2)]
            + [pod(f"small{number}", request="0.5") for number in range(4)]
        ),
        NodeGroup("octo", gpus=8, cpu="64"),
    ),
    "gang": Load(
        lambda: [pod(f"p{number}", request="1", group="train", group_size="6") for number in range(6)],
        NodeGroup("double", gpus=2, cpu="16"),
    ),
}


def least_nodes(load: Load) -> int:
    """Return a lower bound of the nodes that the load needs."""
    halves, percent, memory = 0.0, 0.0, 0.0
    for made in load.pods():
        asked = made["metadata"]["annotations"]
        gpus = int(asked.get(contract.GPUS, "1"))
        part = float(asked.get(contract.REQUEST, "1" if contract.GPUS in asked else "0"))
        percent += gpus * part
        memory += float(asked.get(contract.MEMORY, "0Gi").removesuffix("Gi")) / load.group.memory_gib
        halves += gpus if part > 0.5 else 0
    return math.ceil(max(percent, halves, memory) / load.group.gpus - 1e-9)


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Yield a cluster with gpushare's manifests and the component, and without nodes."""
    administrator = lab_cluster.up(directory / "lab", node_count=0, scheduler=True, owner=os.getpid())
    try:
        conftest.apply(administrator)
        for name in ("namespace", "template", "rights", "policy"):
            administrator.kubectl("apply", "--server-side", f"--filename={COMPONENT / name}.yaml")
        administrator.ensure_default_service_account(contract.DEMAND_NAMESPACE)
        (directory / "replicas").mkdir()
        yield from conftest.prepared(administrator, directory / "replicas")
    finally:
        lab_cluster.down(directory / "lab")


def measure(here: Cluster, replica: Replica, load: Load, boot_seconds: float) -> tuple[float, int]:
    """Run a load; return the seconds until all pods are bound, and how many nodes were started."""
    for path in (f"{here.path}/pods", contract.GPUNODE_PATH, NODES):
        here.administrator.delete(path)
    until(lambda: not here.administrator.read(demand_pods.PODS_PATH)["items"], replica.explain)
    autoscaler = Autoscaler(
        here.administrator, here.namespace, (load.group,), boot_seconds=boot_seconds, unneeded_seconds=600
    )
    names = [here.create(made)["metadata"]["name"] for made in load.pods()]
    begun = time.monotonic()
    while not all(made["spec"].get("nodeName") for made in here.pods()):
        if time.monotonic() - begun > MAX_SECONDS:
            raise SystemExit(f"{len(names)} pods are not bound after {MAX_SECONDS} s:\n{replica.explain()}")
        autoscaler.step()
        time.sleep(0.2)
    return time.monotonic() - begun, autoscaler.started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--boot-seconds", type=float, default=2.0)
    parser.add_argument("--loads", default=",".join(LOADS))
    arguments = parser.parse_args()
    figures = []
    print(f"{'load':8} {'pods':>5} {'seconds':>8} {'of boot':>8} {'nodes':>6} {'least':>6}")
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch, cluster(Path(scratch)) as here:
        replica = here.start(*FLAGS)
        for name in arguments.loads.split(","):
            load = LOADS[name]
            seconds, nodes = measure(here, replica, load, arguments.boot_seconds)
            least = least_nodes(load)
            boot = arguments.boot_seconds
            print(f"{name:8} {len(load.pods()):5} {seconds:8.1f} {boot:8.1f} {nodes:6} {least:6}", flush=True)
            figures += [
                {"figure": f"autoscaling.{name}.seconds", "value": round(seconds, 1), "unit": "s", "against": "boot"}
                | {"ratio": round(seconds / boot, 1) if boot else None},
                {"figure": f"autoscaling.{name}.nodes", "value": nodes, "unit": "nodes", "against": "least possible"}
                | {"ratio": round(nodes / least, 2)},
            ]
    for figure in figures:
        print(json.dumps(figure))


if __name__ == "__main__":
    main()
