"""A small cluster with an example of everything that a view can show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpushare import codec, contract, quantity
from gpushare.allocation import Allocation, GivenShare, Labels, PodRef
from gpushare.gpunode import Condition, Gpu, GpuNode, Mode
from kubectl_gpushare.source import live_usage
from kubectl_gpushare.source.live_usage import Usage
from kubectl_gpushare.source.snapshot import Snapshot

GIB = 2**30
NOW = quantity.parse_time("2026-03-01T12:00:00Z")
WAITING = (
    "no GPU fits 0.5 GPU with 60Gi: of 12 GPUs on 3 nodes, 4 too small, 1 unhealthy; nearest: gpu-1/0 has 20Gi free"
)


def uuid(node: str, index: int) -> str:
    return f"GPU-{node.encode().hex()}-{index:04}"


def gpu(node: str, index: int, *, model: str = "NVIDIA A100-SXM4-80GB", gib: int = 80, **more: Any) -> Gpu:
    return Gpu(
        uuid(node, index),
        index,
        model,
        gib * GIB,
        (8, 0),
        numa_node=index // 2,
        pci_bus_id=f"00000000:{index:02x}:00.0",
        **more,
    )


def held(
    name: str, *uuids: str, request: int, gib: int, limit: int = 100, until: float | None = None, exclusion: str = ""
) -> Allocation:
    namespace, _, pod_name = name.partition("/")
    return Allocation(
        f"id-{pod_name}",
        PodRef(namespace, pod_name, "" if until else f"uid-{pod_name}"),
        (GivenShare(("main",), uuids, request, limit, gib * GIB),),
        until,
        Labels(exclusion=exclusion),
    )


def nodes() -> tuple[GpuNode, ...]:
    """Return gpu-1, which is well used, gpu-2 with every problem, and gpu-10 with another model and over-committed."""
    ready = Condition("Ready", "True", "Reported", "4 GPUs", "2026-03-01T08:00:00Z")
    refused = 'the label names the config "mixd", which the ConfigMap does not have; the last good one stays in force'
    return (
        GpuNode(
            "gpu-1",
            tuple(gpu("gpu-1", index) for index in range(4)),
            (
                held("ml/trainer", uuid("gpu-1", 0), request=50, limit=80, gib=40),
                held("ml/notebook", uuid("gpu-1", 0), request=25, gib=20),
                held("ml/llm", uuid("gpu-1", 1), uuid("gpu-1", 2), request=100, gib=80),
                held("web/small", uuid("gpu-1", 3), request=0, gib=10),
            ),
            config="default",
            conditions=(ready, Condition("ConfigPending", "False", "Done", "every GPU is as configured")),
        ),
        GpuNode(
            "gpu-2",
            (
                gpu("gpu-2", 0),
                gpu("gpu-2", 1, healthy=False, health_reason="XID 79: the GPU has fallen off the bus"),
                gpu("gpu-2", 2, cordoned=True),
                gpu("gpu-2", 3, mode=Mode.MIG),
            ),
            (
                held("ml/new", uuid("gpu-2", 0), request=90, gib=30, until=NOW + 25, exclusion="team-a"),
                held("ml/old", "GPU-gone", request=50, gib=30),
            ),
            cordoned=frozenset({uuid("gpu-2", 2)}),
            config="mixed",
            conditions=(ready, Condition("ConfigValid", "False", "Unknown", refused, "2026-03-01T11:55:30Z")),
        ),
        GpuNode(
            "gpu-10",
            tuple(gpu("gpu-10", index, model="Tesla T4", gib=16) for index in range(4)),
            (
                held("batch/a-long-deployment-name-7d4b9c6f5-x9z8q", uuid("gpu-10", 0), request=60, gib=8),
                held("batch/b", uuid("gpu-10", 0), request=60, gib=8),
                held("batch/c", uuid("gpu-10", 1), request=75, gib=15),
            ),
            config="default",
            conditions=(Condition("Ready", "False", "AgentSilent", "the agent has not reported for 10m"),),
        ),
    )


def pod(name: str, *, node: str = "", phase: str = "Running", ours: bool = True, **annotations: Any) -> dict[str, Any]:
    namespace, _, pod_name = name.partition("/")
    placed = {contract.NODE: node, contract.ALLOCATION: f"id-{pod_name}"} if node and ours else {}
    keys = {contract.PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": pod_name,
            "uid": f"uid-{pod_name}",
            "creationTimestamp": "2026-03-01T09:00:00Z",
            "annotations": {**keys, **placed},
            "labels": {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE} if ours else {},
        },
        "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})},
        "status": {"phase": phase, **({"startTime": "2026-03-01T09:00:10Z"} if node else {})},
    }


def gated(name: str, **annotations: Any) -> dict[str, Any]:
    manifest = pod(name, phase="Pending", ours=True, **annotations)
    manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    return manifest


def pods() -> tuple[dict[str, Any], ...]:
    return (
        pod("ml/trainer", node="gpu-1", request="0.5", memory="40Gi", limit="0.8"),
        pod("ml/notebook", node="gpu-1", request="0.25"),
        pod("ml/llm", node="gpu-1", gpus="2"),
        pod("web/small", node="gpu-1", memory="10Gi"),
        pod("ml/lost", node="gpu-1", request="1"),
        pod("batch/b", node="gpu-10", request="0.6"),
        pod("web/nginx", node="gpu-1", ours=False),
        gated("ml/waiting", request="0.5", memory="60Gi", reason=WAITING),
        gated("ml/just-made", request="0.5"),
    )


def used() -> Usage:
    """Return the usage that the agents of two nodes report; the third agent is missing."""
    line = '{}{{node="gpu-1",namespace="{}",pod="{}",containers="main",gpu="{}"}} {}'
    shares = (
        ("ml", "trainer", uuid("gpu-1", 0), 39 * GIB, 0.62),
        ("ml", "notebook", uuid("gpu-1", 0), GIB // 2, 0.0),
        ("ml", "llm", uuid("gpu-1", 1), 71 * GIB, 0.97),
        ("ml", "llm", uuid("gpu-1", 2), 71 * GIB, 0.95),
        ("web", "small", uuid("gpu-1", 3), 11 * GIB, 0.1),
    )
    text = [line.format(live_usage.MEMORY, *share[:3], float(share[3])) for share in shares]
    text += [line.format(live_usage.COMPUTE, *share[:3], share[4]) for share in shares]
    given = 'namespace="ml",pod="sliced",container="main",resource="nvidia.com/mig-3g.40gb"'
    other = f'{live_usage.DEVICES}{{node="gpu-2",{given},gpu="{uuid("gpu-2", 3)}"}} 2.0'
    return live_usage.parse({"gpu-1": "\n".join(["# HELP x y", "up 1", *text]), "gpu-2": other})


def events() -> tuple[dict[str, Any], ...]:
    """Return Events about the waiting pod and about a node, in both APIs for Events."""
    waiting = {"kind": "Pod", "namespace": "ml", "name": "waiting"}
    node = {"kind": "GPUNode", "name": "gpu-1"}
    return (
        {
            "kind": "Event",
            "metadata": {"namespace": "ml", "name": "waiting.1", "creationTimestamp": "2026-03-01T11:00:00Z"},
            "involvedObject": waiting,
            "type": "Warning",
            "reason": contract.EVENT_GATED,
            "message": WAITING,
            "eventTime": "2026-03-01T11:00:00.000000Z",
            "reportingComponent": "gpushare",
            "series": {"count": 4, "lastObservedTime": "2026-03-01T11:58:00.000000Z"},
        },
        {
            "kind": "Event",
            "metadata": {"namespace": "default", "name": "gpu-1.1"},
            "regarding": node,
            "type": "Normal",
            "reason": contract.EVENT_EXPIRED,
            "note": "its pod never appeared",
            "eventTime": "2026-03-01T10:00:00.000000Z",
        },
    )


def snapshot() -> Snapshot:
    return Snapshot(nodes(), pods())


def save(path: Path) -> Path:
    """Save the cluster as `kubectl get gpunodes,pods -A -o json` would print it."""
    items = [*map(codec.to_document, nodes()), *pods(), *events()]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
    return path
