"""The lab's node as a node of another device plugin, from which gpushare borrows GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.state import pod_resources
from gpushare import contract, ledger
from lab import access, api_audit, cluster, gpushare, lab_layout
from tests import other_plugin, rights
from tests.config import manifests
from tests.e2e.observation import Observer
from tests.e2e.test_life_of_a_pod import sleeper

PLACEHOLDERS = f"/api/v1/namespaces/{contract.BORROW_NAMESPACE}/pods"


Plugin = Callable[[access.Access, lab_layout.Layout], AbstractContextManager[None]]


def stand_in(lab: access.Access, layout: lab_layout.Layout) -> AbstractContextManager[None]:
    """Run the stand-in for NVIDIA's device plugin on the node."""
    (node,) = layout.nodes
    uuids = [gpu.uuid for gpu in Observer(lab, "default").gpunode().gpus]
    return other_plugin.running(layout.kubelet_directory(node) / "device-plugins", uuids)


@contextlib.contextmanager
def lab_of_its_own(plugin: Plugin = stand_in) -> Iterator[tuple[access.Access, lab_layout.Layout]]:
    """Start a lab whose node another plugin serves, with gpushare and the component."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=1, owner=os.getpid())
            layout = lab_layout.load(directory)
            with lent(administrator, layout, idle_seconds=5, plugin=plugin):
                yield administrator, layout
                beyond = rights.beyond(api_audit.calls(layout.audit_log))
                assert not beyond, f"gpushare asked for what it has no right to: {beyond}"
        finally:
            cluster.down(directory)


@contextlib.contextmanager
def lent(
    lab: access.Access, layout: lab_layout.Layout, *, idle_seconds: int, plugin: Plugin = stand_in
) -> Iterator[None]:
    """Install gpushare with the component, and let another plugin give the GPUs of the node."""
    (node,) = layout.nodes
    flag = f"--borrow-idle-seconds={idle_seconds}"
    add = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": flag}]
    patch = {"target": {"kind": "Deployment", "name": "gpushare-webhook"}, "patch": json.dumps(add)}
    with overlay("borrow", patches=[patch]) as directory:
        gpushare.install(layout, lab, directory)
    gpus = len(Observer(lab, "default").gpunode().gpus)
    lab.kubectl("label", "node", node.name, f"{contract.BORROW_LABEL}={gpus}")
    with plugin(lab, layout):
        gpushare.ready(layout, lab)
        has_gpus(lab, node.name, gpus)
        yield


def apply_with(lab: access.Access, *components: str) -> None:
    """Apply the lab's manifests with more components."""
    with overlay(*components) as directory:
        lab.kubectl("apply", "--server-side", "--force-conflicts", f"--kustomize={directory}")


@contextlib.contextmanager
def overlay(*components: str, patches: Sequence[Mapping[str, Any]] = ()) -> Iterator[Path]:
    """Write the lab's manifests with more components; yield their directory."""
    with tempfile.TemporaryDirectory(prefix="overlay-", dir="/tmp") as scratch:
        wanted = {
            "resources": [os.path.relpath(gpushare.MANIFESTS, scratch)],
            "components": [os.path.relpath(manifests.CONFIG / "components" / name, scratch) for name in components],
            "patches": list(patches),
        }
        (Path(scratch) / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        yield Path(scratch)


def has_gpus(lab: access.Access, node: str, gpus: int) -> None:
    """Wait until the node offers so many whole GPUs of the other plugin."""
    wanted = f"--for=jsonpath={{.status.allocatable.nvidia\\.com/gpu}}={gpus}"
    lab.kubectl("wait", f"node/{node}", wanted, "--timeout=60s")


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
