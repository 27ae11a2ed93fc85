"""Small clusters of pods with recreating owners, placed as the webhook places them."""

from __future__ import annotations

from typing import Any

from gpushare import contract, ledger
from gpushare.allocation import Allocation, Isolation
from gpushare.defragmentation import goals
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.moves import DefragPlan
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from tests import builders
from webhook.pods import mutation

NONE = Budgets.from_manifests([])


def owned(name: str, *, kind: str = "ReplicaSet", priority: int = 0, app: str = "", **asks: Any) -> dict[str, Any]:
    manifest = builders.pod(name, **asks)
    owner = {"kind": kind, "name": "owner", "uid": f"owner-of-{name}", "controller": True}
    manifest["metadata"] |= {"uid": f"uid-{name}", "ownerReferences": [owner] if kind else []}
    manifest["metadata"]["labels"] = {"app": app or name}
    manifest["spec"]["priority"] = priority
    return manifest


def node_manifest(name: str, *, gpus: int = 2, pods: int = 110) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {contract.HOSTNAME_LABEL: name}},
        "status": {
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": str(pods), **builders.agent_resources(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def cluster(
    *placed: tuple[dict[str, Any], str],
    nodes: int = 1,
    gpus: int = 2,
    pods: int = 110,
    kind: Isolation = Isolation.ARBITER,
) -> World:
    """Return nodes n0, n1, … with these pods on these GPUs (`n0/1`, `n0/0,1`), and an unhealthy node.

    pods: the maximum of each node. kind: of all GPUs and shares.
    """
    gpu_nodes = {f"n{number}": builders.node(f"n{number}", gpus=gpus, isolations=(kind,)) for number in range(nodes)}
    gpu_nodes["sick"] = builders.node("sick", gpus=gpus, healthy=False)
    for manifest, where in placed:
        name, _, indices = where.partition("/")
        share = RequestingPod.from_manifest(manifest).request.demands[0].share
        entry = builders.allocation(
            manifest["metadata"]["name"],
            *(f"GPU-{name}-{index}" for index in indices.split(",")),
            request=share.request_percent,
            limit=share.limit_percent,
            memory_gib=share.memory.on(80 * builders.GIB) // builders.GIB,
            pod_name=manifest["metadata"]["name"],
            uid=manifest["metadata"]["uid"],
            isolation=kind,
        )
        gpu_nodes[name] = ledger.reserve(gpu_nodes[name], entry)
        put(manifest, entry, name)
    node_manifests = [node_manifest(name, gpus=gpus, pods=pods) for name in gpu_nodes]
    return World(gpu_nodes.values(), node_manifests, [manifest for manifest, _ in placed])


def put(manifest: dict[str, Any], entry: Allocation, node: str) -> None:
    """Change the pod as the webhook and the scheduler would when it is placed and bound."""
    placed = mutation.Placed(entry.id, node, node, entry.shares)
    manifest.update(mutation.rewrite(manifest, RequestingPod.from_manifest(manifest).request, placed))
    manifest["spec"]["nodeName"] = node


def hole(**annotations: str) -> tuple[str, RequestingPod]:
    return "a hole", goals.share({contract.PREFIX + key: value for key, value in annotations.items()})


def moved(plan: DefragPlan) -> list[tuple[str, str, str]]:
    return [(move.manifest["metadata"]["name"], move.before, move.after) for move in plan.moves]
