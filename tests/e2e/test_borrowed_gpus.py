"""A node whose GPUs another device plugin gives: shares and whole-GPU pods side by side, on a real kubelet."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpushare import contract, ledger
from lab import access, gpushare, lab_layout, other_plugin
from tests.config import manifests
from tests.e2e.observation import Observer, annotation, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = pytest.mark.lab(own=True)

COMPONENT = manifests.CONFIG / "components" / "borrow"
PLACEHOLDERS = f"/api/v1/namespaces/{contract.BORROW_NAMESPACE}/pods"
SLOWLY = 120.0


@contextlib.contextmanager
def lent(lab: access.Access, layout: lab_layout.Layout, *more: str) -> Iterator[None]:
    """Install the component, and let another plugin give the GPUs of the node."""
    system = f"--namespace={contract.SYSTEM_NAMESPACE}"
    (node,) = layout.nodes
    webhook = json.loads(lab.kubectl("get", system, "deployment/gpushare-webhook", "--output=json"))
    container = webhook["spec"]["template"]["spec"]["containers"][0]
    for name in ("namespace", "template", "rights", "policy"):
        documents = manifests.documents(COMPONENT / f"{name}.yaml")
        for document in documents:
            if document["kind"] == "PodTemplate":
                (placeholder,) = document["template"]["spec"]["containers"]
                placeholder["image"] = container["image"]
        lab.kubectl("apply", "--server-side", "--filename=-", input=yaml.safe_dump_all(documents))
    uuids = [gpu.uuid for gpu in Observer(lab, "default").gpunode().gpus]
    lab.kubectl("label", "node", node.name, f"{contract.BORROW_LABEL}={len(uuids)}")
    directory = layout.kubelet_directory(node) / "device-plugins"
    with other_plugin.running(directory, uuids):
        arguments = [*container["args"], f"--borrow-max-gpus={len(uuids)}", *more]
        patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments}]
        lab.kubectl("patch", system, "deployment/gpushare-webhook", "--type=json", f"--patch={json.dumps(patch)}")
        gpushare.ready(layout, lab)
        has = "--for=jsonpath={.status.allocatable.nvidia\\.com/gpu}"
        lab.kubectl("wait", f"node/{node.name}", f"{has}={len(uuids)}", "--timeout=60s")
        yield


@pytest.fixture(scope="module")
def lender(installed: lab_layout.Layout, lab: access.Access) -> Iterator[None]:
    with lent(lab, installed, "--borrow-idle-seconds=5"):
        yield


def whole(name: str) -> dict[str, Any]:
    """Return a pod with one GPU of the other plugin."""
    manifest = sleeper(name)
    manifest["metadata"].pop("annotations", None)
    manifest["spec"]["containers"][0]["resources"] = {"limits": {contract.BORROWED_RESOURCE: "1"}}
    return manifest


def placeholders(lab: access.Access) -> list[dict[str, Any]]:
    return list(lab.read(PLACEHOLDERS)["items"])


def gpus_of_whole_pods(user: Observer) -> set[str]:
    """Return the UUIDs that whole-GPU pods have."""
    running = [
        made
        for made in user.pods()
        if made["metadata"]["name"].startswith("whole") and made["status"]["phase"] == "Running"
    ]
    return {user.inside(made["metadata"]["name"], "printenv", contract.ENV_VISIBLE_DEVICES).strip() for made in running}


def shared_gpus(user: Observer) -> set[str]:
    return {uuid for uuid, used in ledger.use(user.gpunode()).items() if used.holders}


def test_gpus_are_borrowed_shared_reclaimed_and_given_back(lender: None, user: Observer, lab: access.Access) -> None:
    node = user.gpunode()
    count = len(node.gpus)
    eventually(lambda: all(gpu.unowned for gpu in user.gpunode().gpus), seconds=SLOWLY, what="the other plugin's GPUs")
    assert contract.BORROWED_RESOURCE not in json.dumps(lab.read(f"/api/v1/nodes/{node.name}")["metadata"]["labels"])

    # Two shares need one GPU.
    user.apply(sleeper("a", request="0.5"))
    made = user.pod("a")
    assert made is not None
    assert "belongs to another device plugin" in annotation(made, contract.REASON)
    user.apply(sleeper("b", request="0.5"))
    for name in ("a", "b"):
        user.running(name, seconds=SLOWLY)
    (shared,) = shared_gpus(user)
    (placeholder,) = placeholders(lab)
    borrowed = user.gpunode().borrowed
    assert borrowed[shared] == placeholder["metadata"]["uid"]

    # Whole-GPU pods get the others, and the one more that preempts the placeholder waits for the end of the shares.
    names = [f"whole-{number}" for number in range(count)]
    for name in names:
        user.apply(whole(name))
    eventually(lambda: len(gpus_of_whole_pods(user)) == count - 1, seconds=SLOWLY, what="running whole-GPU pods")
    eventually(lambda: placeholders(lab)[0]["metadata"].get("deletionTimestamp"), seconds=SLOWLY, what="preempted")
    reclaimed = f"reason={contract.EVENT_GPU_RECLAIMED}"
    eventually(
        lambda: lab.kubectl("get", "events", "--all-namespaces", f"--field-selector={reclaimed}", "--no-headers"),
        what="reported",
    )
    assert shared not in gpus_of_whole_pods(user)
    user.running("a")
    user.apply(sleeper("late", request="0.1"))
    eventually(
        lambda: (
            "waits for a GPU: 1 asked for" in annotation(user.pod("late") or {}, contract.REASON)
            or "borrows no GPU of" in annotation(user.pod("late") or {}, contract.REASON)
        ),
        what="told why it waits",
    )
    user.delete("pod", "late")
    user.delete("pods", "a", "b")
    eventually(lambda: len(gpus_of_whole_pods(user)) == count, seconds=SLOWLY, what="given to the pod that waited")
    assert not shared_gpus(user)

    # Everything is given back in the end, also what was asked for last.
    user.delete("pods", "--all")
    user.apply(sleeper("c", request="1"))
    user.running("c", seconds=SLOWLY)
    user.delete("pods", "--all")
    eventually(lambda: placeholders(lab) == [], seconds=SLOWLY, what="given back")
    eventually(lambda: all(gpu.unowned for gpu in user.gpunode().gpus), what="the other plugin's again")
