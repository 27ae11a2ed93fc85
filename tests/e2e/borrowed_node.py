"""The lab's node as a node of another device plugin, from which gpushare borrows GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.state import pod_resources
from gpushare import contract, ledger
from lab import access, gpushare, lab_layout
from tests import other_plugin
from tests.config import manifests
from tests.e2e.observation import Observer
from tests.e2e.test_life_of_a_pod import sleeper

COMPONENT = manifests.CONFIG / "components" / "borrow"
PLACEHOLDERS = f"/api/v1/namespaces/{contract.BORROW_NAMESPACE}/pods"


@contextlib.contextmanager
def lent(lab: access.Access, layout: lab_layout.Layout, *more: str) -> Iterator[None]:
    """Install the component, and let another plugin give the GPUs of the node; `more`: flags of the webhook."""
    (node,) = layout.nodes
    with tempfile.TemporaryDirectory(prefix="borrow-", dir="/tmp") as scratch:
        add = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": flag} for flag in more]
        target = {"kind": "Deployment", "name": "gpushare-webhook"}
        wanted = {
            "resources": [os.path.relpath(gpushare.MANIFESTS, scratch)],
            "components": [os.path.relpath(COMPONENT, scratch)],
            "patches": [{"target": target, "patch": json.dumps(add)}],
        }
        (Path(scratch) / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        lab.kubectl("apply", "--server-side", "--force-conflicts", f"--kustomize={scratch}")
    uuids = [gpu.uuid for gpu in Observer(lab, "default").gpunode().gpus]
    lab.kubectl("label", "node", node.name, f"{contract.BORROW_LABEL}={len(uuids)}")
    with other_plugin.running(layout.kubelet_directory(node) / "device-plugins", uuids):
        gpushare.ready(layout, lab)
        has = "--for=jsonpath={.status.allocatable.nvidia\\.com/gpu}"
        lab.kubectl("wait", f"node/{node.name}", f"{has}={len(uuids)}", "--timeout=60s")
        yield


def whole(name: str) -> dict[str, Any]:
    """Return a pod with one GPU of the other plugin."""
    manifest = sleeper(name)
    manifest["metadata"].pop("annotations", None)
    manifest["spec"]["containers"][0]["resources"] = {"limits": {contract.BORROWED_RESOURCE: "1"}}
    return manifest


def placeholders(lab: access.Access) -> list[dict[str, Any]]:
    return list(lab.read(PLACEHOLDERS)["items"])


def gpus_of_whole_pods(lab: access.Access, layout: lab_layout.Layout) -> dict[str, str]:
    """Return the GPUs that pods other than placeholders have of the other plugin, by the kubelet; with the pod's name."""
    (node,) = layout.nodes
    living = {
        (made["metadata"]["namespace"], made["metadata"]["name"])
        for made in lab.read("/api/v1/pods")["items"]
        if made["status"].get("phase") in {"Pending", "Running"}
    }
    socket = layout.kubelet_directory(node) / "pod-resources" / "kubelet.sock"
    return {
        uuid: held.pod
        for held in asyncio.run(pod_resources.held(socket))
        if held.resource == contract.BORROWED_RESOURCE and held.namespace != contract.BORROW_NAMESPACE
        if (held.namespace, held.pod) in living
        for uuid in held.device_ids
    }


def shared_gpus(user: Observer) -> dict[str, frozenset[str]]:
    """Return the GPUs with shares, each with the IDs of its allocations."""
    used = ledger.use(user.gpunode()).items()
    return {uuid: frozenset(entry.id for entry in use.holders) for uuid, use in used if use.holders}
