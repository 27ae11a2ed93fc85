"""A kubectl that answers from a file, and changes it as a cluster with owners, webhook and placer would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpushare import codec, contract, ledger
from tests import builders
from tests.gpushare.defragmentation.clusters import owned
from tests.kubectl_gpushare.programs import kubectl_with_owners
from tests.programs import script


def program(folder: Path, mode: str) -> str:
    """Return the kubectl; it records its changes in `folder`."""
    node = builders.node("n0", gpus=2)
    pods = [owned("a", request="0.25"), owned("b", request="0.5")]
    for index, manifest in enumerate(pods):
        name = manifest["metadata"]["name"]
        request = (25, 50)[index]
        entry = builders.allocation(
            name, f"GPU-n0-{index}", request=request, memory_gib=8, pod_name=name, uid=f"uid-{name}"
        )
        node = ledger.reserve(node, entry)
        manifest["metadata"]["labels"][contract.SHARE_LABEL] = contract.SHARE_LABEL_VALUE
        manifest["spec"]["nodeName"] = "n0"
    state: dict[str, Any] = {"gpunodes": [codec.to_document(node)], "pods": pods, "nodes": [], "log": []}
    state["nodes"] = [{**builders.node_object("n0"), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]
    if mode.startswith("cpu-only"):
        state |= _crowded()
    path = folder / "state.json"
    path.write_text(json.dumps(state))
    made = folder / "kubectl-of-a-file"
    made.write_text(script(kubectl_with_owners.serve, str(path), mode))
    made.chmod(0o755)
    return str(made)


def _crowded() -> dict[str, Any]:
    """Return a node with a free GPU whose CPU is held by a pod without a share, and another node with free CPU."""
    crowding, waiting = owned("c"), owned("w", request="1")
    crowding["metadata"]["annotations"] = {}
    crowding["spec"]["nodeName"] = "n0"
    waiting["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    waiting["metadata"]["labels"][contract.SHARE_LABEL] = contract.SHARE_LABEL_VALUE
    for manifest, cpu in ((crowding, "6"), (waiting, "4")):
        manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    other = builders.node_object("plain", gpus=2)
    other["status"]["allocatable"] = {"cpu": "32", "memory": "64Gi", "pods": "110"}
    nodes = [builders.node_object("n0", gpus=2), other]
    gpu_node = codec.to_document(builders.node("n0", gpus=2))
    return {"gpunodes": [gpu_node], "pods": [crowding, waiting], "nodes": nodes}


def log(folder: Path) -> list[list[str]]:
    """Return the recorded changes in order."""
    steps: list[list[str]] = json.loads((folder / "state.json").read_text())["log"]
    return steps


def labels(folder: Path) -> dict[str, str]:
    """Return the labels of the GPUNode n0."""
    values: dict[str, str] = json.loads((folder / "state.json").read_text())["gpunodes"][0]["metadata"]["labels"]
    return values


def mark(folder: Path, uuid: str, text: str) -> None:
    """Cordon a GPU as a run of `defrag` does."""
    path = folder / "state.json"
    state = json.loads(path.read_text())
    node = state["gpunodes"][0]
    node["metadata"].setdefault("labels", {})[contract.DEFRAG_LABEL_PREFIX + uuid] = text
    node["spec"]["cordoned"] = sorted({*node["spec"].get("cordoned", ()), uuid})
    path.write_text(json.dumps(state))
