"""A kubectl that answers from a file, and changes it as a cluster with owners, webhook and placer would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpushare import codec, contract, ledger
from tests import builders
from tests.gpushare.defragmentation.clusters import machine, owned

# What the real ones do when a pod is evicted: the owner makes another, and the webhook places it or does not.
SERVER = """
import json, os, sys, urllib.parse
path, mode = {path!r}, {mode!r}
state = json.load(open(path))
words = sys.argv[1:]
def of(kind, query):
    name = dict(part.split("=", 1) for part in query.get("fieldSelector", [""])[0].split(",") if "=" in part)
    name = name.get("metadata.name")
    return [one for one in state[kind] if not name or one["metadata"]["name"] == name]
if words[0] == "get":
    found = urllib.parse.urlsplit(words[2])
    kind = found.path.rpartition("/")[2]
    if "/configmaps/" in found.path:
        sys.exit(f'Error from server (NotFound): configmaps "{{kind}}" not found')
    if "/replicasets/" in found.path:
        # The evicted pod of "a" is one of so many as it wants; when it is made larger, the other one comes first.
        wanted = 2 if mode in ("grows", "grown") and state["log"] else 0 if mode == "shrinks" and state["log"] else 1
        print(json.dumps({{"kind": "ReplicaSet", "metadata": {{"name": kind}}, "spec": {{"replicas": wanted}}}}))
        sys.exit()
    if "/pods/" in found.path:
        print(json.dumps(next(one for one in state["pods"] if one["metadata"]["name"] == kind)))
        sys.exit()
    items = of(kind, urllib.parse.parse_qs(found.query)) if kind in state else []
    print(json.dumps({{"kind": "List", "items": items, "metadata": {{"resourceVersion": "1"}}}}))
elif words[0] == "patch":
    if mode == "locked" and words[2] == "n0" and '"cordoned": []' in words[4]:
        sys.exit("Error from server (InternalError): etcdserver: request timed out")
    node = next(one for one in state["gpunodes"] if one["metadata"]["name"] == words[2])
    patch = json.loads(words[4].partition("=")[2])
    labels = node["metadata"].setdefault("labels", {{}})
    labels.update(patch["metadata"].get("labels", {{}}))
    node["metadata"]["labels"] = {{key: value for key, value in labels.items() if value is not None}}
    node["spec"]["cordoned"] = patch["spec"]["cordoned"]
    state["log"].append(["cordoned", *node["spec"]["cordoned"]])
elif words[0] == "create":
    eviction = json.load(sys.stdin)
    name = eviction["metadata"]["name"]
    if mode == "refused":
        sys.exit("Error from server (TooManyRequests): Cannot evict pod as it would violate its disruption budget.")
    state["log"].append(["evicted", name])
    pod = next(one for one in state["pods"] if one["metadata"]["name"] == name)
    assert eviction["deleteOptions"]["preconditions"]["uid"] == pod["metadata"]["uid"]
    if mode == "shrinks":
        state["pods"].remove(pod)
        state["gpunodes"][0]["spec"]["allocations"].pop(0)
    if mode == "grown":
        more = json.loads(json.dumps(pod))
        more["metadata"].update(name=name + "-more", uid="uid-more-" + name)
        more["metadata"]["annotations"].update({{"gpushare.io/allocation": "more", "gpushare.io/node": "n0"}})
        state["pods"].append(more)
    pod["metadata"].update(name=name + "-anew", uid="uid-anew-" + name)
    pod["spec"].pop("nodeName", None)
    if mode.startswith("cpu-only"):
        if mode == "cpu-only-pending":
            message = "0/2 nodes are available"
            pod["status"] = {{"conditions": [{{"type": "PodScheduled", "status": "False", "message": message}}]}}
        else:
            pod["spec"]["nodeName"] = "n0" if mode == "cpu-only-back" else "plain"
        waiting = next(one for one in state["pods"] if one["metadata"]["name"] == "w")
        waiting["metadata"]["annotations"].update({{"gpushare.io/allocation": "of-w", "gpushare.io/node": "n0"}})
    elif mode == "gated":
        pod["spec"]["schedulingGates"] = [{{"name": "gpushare.io/placement"}}]
        pod["metadata"]["annotations"]["gpushare.io/reason"] = "no GPU fits"
    else:
        pod["metadata"]["annotations"]["gpushare.io/allocation"] = "new"
        pod["metadata"]["annotations"]["gpushare.io/node"] = "n0"
        for entry in state["gpunodes"][0]["spec"]["allocations"]:
            if entry["pod"]["name"] == name and mode in ("placed", "grown"):
                entry["pod"]["uid"] = pod["metadata"]["uid"]
                entry["shares"][0]["gpus"] = ["GPU-n0-1"]
if words[0] != "get":  # several may ask at once
    with open(path + ".new", "w") as file:
        json.dump(state, file)
    os.replace(path + ".new", path)
"""


def program(folder: Path, mode: str) -> str:
    """The kubectl; what it changes is in `folder`."""
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
    state["nodes"] = [
        {
            "kind": "Node",
            "metadata": {"name": "n0", "labels": {contract.HOSTNAME_LABEL: "n0"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
    ]
    if mode.startswith("cpu-only"):
        state |= _crowded()
    path = folder / "state.json"
    path.write_text(json.dumps(state))
    made = folder / "kubectl-of-a-file"
    made.write_text(f"#!{sys.executable}" + SERVER.format(path=str(path), mode=mode))
    made.chmod(0o755)
    return str(made)


def _crowded() -> dict[str, Any]:
    """A node whose GPU is free and whose CPU is held by a pod without a share, and another node that has CPU."""
    crowding, waiting = owned("c"), owned("w", request="1")
    crowding["metadata"]["annotations"] = {}
    crowding["spec"]["nodeName"] = "n0"
    waiting["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    waiting["metadata"]["labels"][contract.SHARE_LABEL] = contract.SHARE_LABEL_VALUE
    for manifest, cpu in ((crowding, "6"), (waiting, "4")):
        manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    other = machine("plain")
    other["status"]["allocatable"] = {"cpu": "32", "memory": "64Gi", "pods": "110"}
    nodes = [{"kind": "Node", **node} for node in (machine("n0"), other)]
    gpu_node = codec.to_document(builders.node("n0", gpus=2))
    return {"gpunodes": [gpu_node], "pods": [crowding, waiting], "nodes": nodes}


def log(folder: Path) -> list[list[str]]:
    """What was done, in order."""
    found: list[list[str]] = json.loads((folder / "state.json").read_text())["log"]
    return found


def labels(folder: Path) -> dict[str, str]:
    """Of the GPUNode n0."""
    found: dict[str, str] = json.loads((folder / "state.json").read_text())["gpunodes"][0]["metadata"]["labels"]
    return found


def mark(folder: Path, uuid: str, text: str) -> None:
    """Cordons a GPU as a run does."""
    path = folder / "state.json"
    state = json.loads(path.read_text())
    node = state["gpunodes"][0]
    node["metadata"].setdefault("labels", {})[contract.DEFRAG_LABEL_PREFIX + uuid] = text
    node["spec"]["cordoned"] = sorted({*node["spec"].get("cordoned", ()), uuid})
    path.write_text(json.dumps(state))
