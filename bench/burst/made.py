"""Hand-made nodes with GPUs, and pods that request shares."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from burst import calls
from gpushare import codec, contract
from gpushare.gpunode import Gpu, GpuNode

GIB = 2**30
GPUS = 8
# Share of a GPU, GiB, weight: most shares are small, some pods request a whole GPU.
SHARES = ((0.1, 8, 2), (0.25, 16, 3), (0.5, 32, 3), (1, 64, 2))


def node_objects(server: calls.Server, names: Sequence[str]) -> None:
    """Create ready nodes."""
    calls.all_well(calls.send(server, (calls.call("POST", "/api/v1/nodes", _node(name)) for name in names)))
    untainted = {"spec": {"taints": None}}  # without a node controller nothing else removes the taint
    calls.all_well(
        calls.send(
            server, (calls.call("PATCH", f"/api/v1/nodes/{name}", untainted, calls.MERGE_PATCH) for name in names)
        )
    )


def nodes(server: calls.Server, names: Sequence[str]) -> None:
    """Create ready nodes, and their GPUNodes with eight GPUs each."""
    node_objects(server, names)
    made = [_gpunode(name) for name in names]
    calls.all_well(
        calls.send(server, (calls.call("POST", contract.GPUNODE_PATH, codec.to_document(node)) for node in made))
    )
    calls.all_well(
        calls.send(
            server,
            (
                calls.call(
                    "PATCH",
                    f"{contract.GPUNODE_PATH}/{node.name}/status",
                    {"status": codec.to_status(node)},
                    calls.MERGE_PATCH,
                )
                for node in made
            ),
        )
    )


OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "workers", "controller": True}


def pods(namespace: str, count: int, *, seed: int) -> Iterator[calls.Call]:
    """Yield the calls that create pods with shares."""
    draw = random.Random(seed)
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(count):
        share, gib, _ = draw.choices(SHARES, [weight for *_, weight in SHARES])[0]
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"worker-{number:05}",
                "labels": {"app": "burst"},
                "annotations": {contract.REQUEST: f"{share:g}", contract.MEMORY: f"{gib}Gi"},
                "ownerReferences": [{**OWNER, "uid": f"workers-{number // 10}"}],
            },
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "image": "gpushare/sample:0.1",
                        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                    }
                ]
            },
        }
        yield calls.Call("POST", path, json.dumps(manifest, separators=(",", ":")).encode())


def ordinary(namespace: str, count: int) -> Iterator[calls.Call]:
    """Yield calls that create pods without a share, bound to other nodes; each is stored as 5.7 KB."""
    variables = [{"name": f"SETTING_{number}", "value": "x" * 200} for number in range(12)]
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(count):
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"ordinary-{number:06}", "labels": {"app": f"app-{number % 500}"}},
            "spec": {
                "nodeName": f"other-{number // 100:05}",
                "containers": [
                    {
                        "name": "main",
                        "image": "example.org/team/service:1.2.3",
                        "env": variables,
                        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                    }
                ],
            },
        }
        yield calls.Call("POST", path, json.dumps(manifest, separators=(",", ":")).encode())


def _node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    shares = {
        contract.RESOURCE_PERCENT: str(GPUS * 100),
        contract.RESOURCE_IDLE: "800",
        contract.RESOURCE_MEMORY: f"{GPUS * 80}Gi",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {contract.HOSTNAME_LABEL: name}},
        "status": {
            "capacity": amounts | shares,
            "allocatable": amounts | shares,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Made", "message": ""}],
        },
    }


def _gpunode(name: str) -> GpuNode:
    draw = random.Random(name)
    gpus = tuple(
        Gpu(f"GPU-{draw.getrandbits(128):032x}", index, "NVIDIA A100-SXM4-80GB", 80 * GIB, (8, 0), index // 4)
        for index in range(GPUS)
    )
    return GpuNode(name, gpus, config="default")
