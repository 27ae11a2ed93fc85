"""The cluster of the pictures: two nodes with a training, services and notebooks at work, and a pod that waits.

As a program it is a kubectl that answers from a folder, so that the plugin asks nodes' agents too: `get --raw PATH`.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

from gpushare import codec, contract, quantity
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Condition, Gpu, GpuNode
from kubectl_gpushare.source import agents, live_usage
from tests import builders

NOW = quantity.parse_time("2026-03-02T09:30:00Z")
_GIB = 1 << 30


class Work(NamedTuple):
    """A pod at work: its GPUs by index, what it was given of each, and what it uses of each."""

    name: str
    node: str
    gpus: tuple[int, ...]
    request: int
    memory: int
    used: float
    busy: float
    since: str
    limit: int = 100


_AT_WORK = (
    Work("ml/train-llama", "gpu-1", (0, 1), 100, 80, 71, 0.97, "2026-03-01T18:04:00Z"),
    Work("web/chat-6d5f7c9b84-x9z8q", "gpu-1", (2,), 50, 40, 34, 0.41, "2026-02-26T07:12:00Z"),
    Work("web/search-7f9c4d6b58-2kq7m", "gpu-1", (2,), 25, 20, 12.5, 0.12, "2026-02-26T07:15:00Z"),
    Work("ml/notebook-anna", "gpu-1", (3,), 25, 20, 6, 0.0, "2026-03-02T08:41:00Z"),
    Work("ml/train-vision", "gpu-2", (0,), 70, 56, 49, 0.88, "2026-03-02T06:20:00Z"),
    Work("ml/notebook-ben", "gpu-2", (0,), 20, 16, 5, 0.07, "2026-03-02T07:55:00Z", 50),
    Work("batch/embed-0", "gpu-2", (1,), 60, 40, 31, 0.66, "2026-03-02T09:02:00Z"),
    Work("batch/embed-1", "gpu-2", (2,), 60, 40, 31, 0.64, "2026-03-02T09:02:00Z"),
    Work("web/rerank-58d4f6b7c9-hp4tw", "gpu-2", (3,), 50, 40, 22, 0.35, "2026-02-27T14:30:00Z"),
)
WAITS = "finetune"
_REASON = (
    "no GPU fits 0.8 GPU with 60Gi: of 8 GPUs on 2 nodes, 8 with too little compute free; "
    "nearest: gpu-1/3 has 0.75 of its compute free"
)


def _uuid(node: str, index: int) -> str:
    return f"GPU-{int(node[-1]) * 16 + index:08x}-5e21-4a0c-9d37-{index:012x}"


def _gpu_node(name: str) -> GpuNode:
    gpus = tuple(
        Gpu(
            _uuid(name, index),
            index,
            "NVIDIA A100-SXM4-80GB",
            80 * _GIB,
            (8, 0),
            numa_node=index // 2,
            pci_bus_id=f"00000000:{index * 2 + 7:02x}:00.0",
        )
        for index in range(4)
    )
    given = tuple(
        Allocation(
            f"of-{work.name.partition('/')[2]}",
            PodRef(*work.name.split("/"), f"uid-{work.name}"),
            (
                GivenShare(
                    ("main",),
                    tuple(_uuid(name, index) for index in work.gpus),
                    work.request,
                    work.limit,
                    work.memory * _GIB,
                ),
            ),
        )
        for work in _AT_WORK
        if work.node == name
    )
    ready = Condition(contract.CONDITION_READY, "True", "GpusHealthy", "4 GPUs", "2026-02-20T08:00:00Z")
    return GpuNode(name, gpus, given, config="default", conditions=(ready,))


def _node(name: str) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {contract.HOSTNAME_LABEL: name}},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", **builders.agent_resources(4)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _pod(name: str, since: str, **asks: str) -> dict[str, Any]:
    namespace, _, pod = name.partition("/")
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": pod,
            "uid": f"uid-{name}",
            "creationTimestamp": since,
            "labels": {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE},
            "annotations": {contract.PREFIX + key: value for key, value in asks.items()},
        },
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Pending"},
    }


def _placed(work: Work) -> dict[str, Any]:
    asks = {"request": str(work.request / 100), "memory": f"{work.memory}Gi"}
    more = {"gpus": str(len(work.gpus))} if len(work.gpus) > 1 else {}
    manifest = _pod(work.name, work.since, **asks, **more)
    results = {contract.NODE: work.node, contract.ALLOCATION: f"of-{work.name.partition('/')[2]}"}
    manifest["metadata"]["annotations"] |= results
    manifest["spec"]["nodeName"] = work.node
    manifest["status"] = {"phase": "Running", "startTime": work.since}
    return manifest


def _waiting() -> dict[str, Any]:
    manifest = _pod(f"ml/{WAITS}", "2026-03-02T09:21:00Z", request="0.8", memory="60Gi", reason=_REASON)
    manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    return manifest


def _metrics(node: str) -> str:
    lines = []
    for work in _AT_WORK:
        namespace, _, pod = work.name.partition("/")
        for index in work.gpus if work.node == node else ():
            labels = f'node="{node}",namespace="{namespace}",pod="{pod}",containers="main",gpu="{_uuid(node, index)}"'
            lines.append(f"{live_usage.MEMORY}{{{labels}}} {work.used * _GIB}")
            lines.append(f"{live_usage.COMPUTE}{{{labels}}} {work.busy}")
    return "\n".join(lines)


def _agent(node: str) -> dict[str, Any]:
    return {"metadata": {"name": f"agent-{node}"}, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


def answer(path: str) -> str:
    """Return the API server's answer to a GET of this path."""
    url = urllib.parse.urlsplit(path)
    fields = dict(urllib.parse.parse_qsl(url.query)).get("fieldSelector", "")
    nodes = ("gpu-1", "gpu-2")
    if asked := re.search(rf"/agent-({'|'.join(nodes)}):{agents.PORT}/proxy/metrics$", url.path):
        return _metrics(asked[1])
    items: list[dict[str, Any]] = []
    if path == agents.AGENTS:
        items = [_agent(node) for node in nodes]
    elif url.path == contract.GPUNODE_PATH:
        items = [codec.to_document(_gpu_node(node)) for node in nodes if fields in {"", f"metadata.name={node}"}]
    elif url.path.startswith("/api/v1/nodes"):
        items = [_node(node) for node in nodes]
        named = url.path.removeprefix("/api/v1/nodes").lstrip("/")
        if named:
            return json.dumps(next(item for item in items if item["metadata"]["name"] == named))
    elif url.path == "/api/v1/pods":
        pods = [*map(_placed, _AT_WORK), _waiting()]
        on = fields.removeprefix("spec.nodeName=") if fields.startswith("spec.nodeName=") else None
        items = [item for item in pods if on is None or item["spec"].get("nodeName", "") == on]
    elif url.path == f"/api/v1/namespaces/ml/pods/{WAITS}":
        return json.dumps(_waiting())
    elif url.path == "/api/v1/namespaces/ml":
        return json.dumps({"kind": "Namespace", "metadata": {"name": "ml"}})
    elif url.path.endswith(f"/configmaps/{contract.PLACEMENT_CONFIG_MAP}"):
        return json.dumps({"kind": "ConfigMap", "data": {}})
    return json.dumps({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})


_KUBECTL = """\
#!{python}
import hashlib, os, pathlib, sys
words = sys.argv[2:]
kept = pathlib.Path({folder!r}, hashlib.sha256(repr(words).encode()).hexdigest())
if not kept.exists():  # most answers are asked for again, and the imports take long
    sys.path.insert(0, {root!r})
    from docs.images import believable
    new = kept.with_suffix(f".{{os.getpid()}}")
    new.write_text(believable.answer(words[1]) if words[0] == "--raw" else "ml")
    new.rename(kept)
print(kept.read_text())
"""


def kubectl(folder: Path) -> Path:
    """A program in this folder that the plugin takes for kubectl."""
    program = folder / "kubectl"
    root = Path(__file__).resolve().parents[2]
    program.write_text(_KUBECTL.format(python=sys.executable, folder=str(folder), root=str(root)))
    program.chmod(0o755)
    return program
