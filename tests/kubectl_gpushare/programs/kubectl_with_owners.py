"""Acts as a cluster does when a pod is evicted: the owner creates another, and the webhook places it or does not."""

from __future__ import annotations

import json
import sys
import urllib.parse
from pathlib import Path
from typing import Any

State = dict[str, Any]


def of(state: State, kind: str, query: dict[str, list[str]]) -> list[Any]:
    pairs = dict(part.split("=", 1) for part in query.get("fieldSelector", [""])[0].split(",") if "=" in part)
    name = pairs.get("metadata.name")
    return [manifest for manifest in state[kind] if not name or manifest["metadata"]["name"] == name]


def get(state: State, mode: str, words: list[str]) -> None:
    url = urllib.parse.urlsplit(words[2])
    kind = url.path.rpartition("/")[2]
    if "/configmaps/" in url.path:
        sys.exit(f'Error from server (NotFound): configmaps "{kind}" not found')
    if "/replicasets/" in url.path:
        # The owner of the evicted pod "a" wants this many pods; when it is scaled up, the additional pod is created
        # first.
        wanted = 2 if mode in ("grows", "grown") and state["log"] else 0 if mode == "shrinks" and state["log"] else 1
        print(json.dumps({"kind": "ReplicaSet", "metadata": {"name": kind}, "spec": {"replicas": wanted}}))
        return
    if "/pods/" in url.path:
        print(json.dumps(next(pod for pod in state["pods"] if pod["metadata"]["name"] == kind)))
        return
    items = of(state, kind, urllib.parse.parse_qs(url.query)) if kind in state else []
    print(json.dumps({"kind": "List", "items": items, "metadata": {"resourceVersion": "1"}}))


def patch(state: State, mode: str, words: list[str]) -> None:
    if mode == "locked" and words[2] == "n0" and '"cordoned": []' in words[4]:
        sys.exit("Error from server (InternalError): etcdserver: request timed out")
    node = next(gpunode for gpunode in state["gpunodes"] if gpunode["metadata"]["name"] == words[2])
    change = json.loads(words[4].partition("=")[2])
    labels = node["metadata"].setdefault("labels", {})
    labels.update(change["metadata"].get("labels", {}))
    node["metadata"]["labels"] = {key: value for key, value in labels.items() if value is not None}
    node["spec"]["cordoned"] = change["spec"]["cordoned"]
    state["log"].append(["cordoned", *node["spec"]["cordoned"]])


def create(state: State, mode: str) -> None:
    eviction = json.load(sys.stdin)
    name = eviction["metadata"]["name"]
    if mode == "refused":
        sys.exit("Error from server (TooManyRequests): Cannot evict pod as it would violate its disruption budget.")
    state["log"].append(["evicted", name])
    pod = next(manifest for manifest in state["pods"] if manifest["metadata"]["name"] == name)
    assert eviction["deleteOptions"]["preconditions"]["uid"] == pod["metadata"]["uid"]
    if mode == "shrinks":
        state["pods"].remove(pod)
        state["gpunodes"][0]["spec"]["allocations"].pop(0)
    if mode == "grown":
        more = json.loads(json.dumps(pod))
        more["metadata"].update(name=name + "-more", uid="uid-more-" + name)
        more["metadata"]["annotations"].update({"gpushare.io/allocation": "more", "gpushare.io/node": "n0"})
        state["pods"].append(more)
    pod["metadata"].update(name=name + "-anew", uid="uid-anew-" + name)
    pod["spec"].pop("nodeName", None)
    if mode.startswith("cpu-only"):
        if mode == "cpu-only-pending":
            message = "0/2 nodes are available"
            pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
        else:
            pod["spec"]["nodeName"] = "n0" if mode == "cpu-only-back" else "plain"
        waiting = next(manifest for manifest in state["pods"] if manifest["metadata"]["name"] == "w")
        waiting["metadata"]["annotations"].update({"gpushare.io/allocation": "of-w", "gpushare.io/node": "n0"})
    elif mode == "gated":
        pod["spec"]["schedulingGates"] = [{"name": "gpushare.io/placement"}]
        pod["metadata"]["annotations"]["gpushare.io/reason"] = "no GPU fits"
    else:
        pod["metadata"]["annotations"]["gpushare.io/allocation"] = "new"
        pod["metadata"]["annotations"]["gpushare.io/node"] = "n0"
        for entry in state["gpunodes"][0]["spec"]["allocations"]:
            if entry["pod"]["name"] == name and mode in ("placed", "grown"):
                entry["pod"]["uid"] = pod["metadata"]["uid"]
                entry["shares"][0]["gpus"] = ["GPU-n0-1"]


def serve(path: str, mode: str) -> None:
    """Answer as kubectl, from a file; several calls may run at once."""
    state, words = json.loads(Path(path).read_text()), sys.argv[1:]
    if words[0] == "get":
        get(state, mode, words)
        return
    if words[0] == "patch":
        patch(state, mode, words)
    elif words[0] == "create":
        create(state, mode)
    made = Path(path + ".new")
    made.write_text(json.dumps(state))
    made.replace(path)
