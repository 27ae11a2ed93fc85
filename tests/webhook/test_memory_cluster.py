"""A cluster in memory, called over HTTPS as an API server would call it."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from gpushare import codec, contract, ledger
from gpushare.gpunode import GpuNode
from tests import builders
from tests.webhook import replica
from webhook import memory_cluster, review

pytestmark = pytest.mark.slow


class Running:
    """A webhook with two nodes of two GPUs each, and the state that it writes."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state.json"
        source = directory / "cluster.json"
        nodes = [codec.to_document(builders.node(name, gpus=2)) for name in ("node-a", "node-b")]
        annotations = {"default.gpushare.io/memory": "8Gi", "max.gpushare.io/request": "0.5"}
        bounded = {"kind": "Namespace", "metadata": {"name": "bounded", "annotations": annotations}}
        source.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*nodes, bounded]}))
        began = time.monotonic()
        self.process = replica.Replica(directory / "replica", f"--from={source}", f"--state={self.state}")
        self.start_seconds = time.monotonic() - began
        authority = directory / "replica" / "certificates" / "ca.crt"
        self._tls = ssl.create_default_context(cafile=str(authority))

    def post(self, body: bytes, path: str = contract.WEBHOOK_PATH) -> Any:
        url = f"https://localhost:{self.process.port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, body), context=self._tls, timeout=10) as answer:
            return json.load(answer)

    def review(self, manifest: dict[str, Any], **more: Any) -> dict[str, Any]:
        request = {"uid": "u-1", "operation": "CREATE", "namespace": "default", "object": manifest, **more}
        envelope = {"apiVersion": review.API_VERSION, "kind": "AdmissionReview", "request": request}
        answered = self.post(json.dumps(envelope).encode())
        return answered["response"]

    def admit(self, manifest: dict[str, Any], **more: Any) -> Any:
        """Return the pod as it would be stored."""
        response = self.review(manifest, **more)
        assert response["allowed"], response
        return jsonpatch.apply_patch(manifest, json.loads(base64.b64decode(response.get("patch", "W10="))))

    def delete(self, name: str, namespace: str = "default") -> None:
        request = {"uid": "u-2", "operation": "DELETE", "namespace": namespace, "name": name, "oldObject": {}}
        body = {"apiVersion": review.API_VERSION, "kind": "AdmissionReview", "request": request}
        assert self.post(json.dumps(body).encode())["response"]["allowed"]

    def pod(self, name: str) -> dict[str, Any]:
        (pod,) = [item for item in self.items("Pod") if item["metadata"]["name"] == name]
        return pod

    def placed(self) -> set[str]:
        pods = self.items("Pod")
        return {pod["metadata"]["name"] for pod in pods if contract.ALLOCATION in pod["metadata"]["annotations"]}

    def items(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in json.loads(self.state.read_text())["items"] if item["kind"] == kind]

    def nodes(self) -> list[GpuNode]:
        return [codec.read(item) for item in self.items(contract.GPUNODE_KIND)]


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    assert running.process.stop() == 0, running.process.explain()


def test_it_starts_at_once_and_says_where_in_its_first_line(webhook: Running) -> None:
    first = json.loads((webhook.state.parent / "replica" / "log").read_text().splitlines()[0])
    assert first["port"] == webhook.process.port
    assert webhook.start_seconds < 30  # 0.3 s when nothing else runs
    assert webhook.process.probe("/readyz") == (200, "ok\n")


def test_a_pod_is_placed_and_kept_in_the_state(webhook: Running) -> None:
    manifest = builders.pod(request="0.5")
    del manifest["metadata"]["name"]
    stored = webhook.admit({**manifest, "metadata": {**manifest["metadata"], "generateName": "train-"}})
    (kept,) = webhook.items("Pod")
    assert kept["spec"] == stored["spec"]
    assert kept["metadata"]["name"].startswith("train-")
    (held,) = [entry for node in webhook.nodes() for entry in node.allocations]
    assert held.id == stored["metadata"]["annotations"][contract.ALLOCATION]
    assert (held.pod.name, held.pod.uid) == (kept["metadata"]["name"], kept["metadata"]["uid"])
    assert held.reserved_until is None


def test_pod_without_room_is_gated_and_invalid_pod_is_denied(webhook: Running) -> None:
    for number in range(5):
        webhook.review(builders.pod(f"pod-{number}", request="1"))
    denied = webhook.review(builders.pod("bad", request="1.5"))
    assert denied["status"]["code"] == 422
    gated = webhook.items("Pod")[-1]
    assert gated["spec"]["schedulingGates"] == [{"name": contract.SCHEDULING_GATE}]
    assert "4 with too little compute free" in gated["metadata"]["annotations"][contract.REASON]
    assert sum(len(node.allocations) for node in webhook.nodes()) == 4
    assert [ledger.violations(node) for node in webhook.nodes()] == [[], []]
    assert webhook.process.reviews() == {"placed": 4, "gated": 1, "denied": 1}
    assert webhook.process.metric("gpushare_webhook_review_duration_seconds_count") == 6


def test_gated_pod_is_placed_when_another_pod_is_deleted(webhook: Running) -> None:
    for number in range(4):
        webhook.admit(builders.pod(f"first-{number}", request="1"))
    webhook.admit(builders.pod("waiting", request="0.5"))
    assert webhook.placed() == {f"first-{number}" for number in range(4)}
    webhook.delete("first-2")
    waiting = webhook.pod("waiting")
    assert "schedulingGates" not in waiting["spec"]
    assert contract.REASON not in waiting["metadata"]["annotations"]
    held = {entry.id: entry.pod.uid for node in webhook.nodes() for entry in node.allocations}
    assert held[waiting["metadata"]["annotations"][contract.ALLOCATION]] == waiting["metadata"]["uid"]
    assert len(held) == 4
    assert webhook.process.metric("gpushare_placer_placed_total") == 1
    assert webhook.process.metric("gpushare_placer_gated_pods") == 0
    webhook.delete("nobody")


def test_gang_is_placed_once_it_is_complete(webhook: Running) -> None:
    gang = [builders.pod(f"red-{number}", request="1", group="red", group_size="3") for number in range(3)]
    for pod in gang[:2]:
        webhook.admit(pod)
    assert webhook.placed() == set()
    said = webhook.pod("red-0")["metadata"]["annotations"][contract.REASON]
    assert said == 'waits for 1 more of its group "red" (have 2 of 3)'
    webhook.admit(gang[2])
    assert webhook.placed() == {"red-0", "red-1", "red-2"}
    assert all(entry.reserved_until is None for node in webhook.nodes() for entry in node.allocations)


def test_gang_without_room_has_no_shares_and_smaller_ones_overtake_it(webhook: Running) -> None:
    webhook.admit(builders.pod("first", request="1"))
    for number in range(4):
        webhook.admit(builders.pod(f"red-{number}", request="1", group="red", group_size="4"))
    webhook.admit(builders.pod("small", request="0.5"))
    assert webhook.placed() == {"first", "small"}
    webhook.delete("first")
    assert webhook.placed() == {"small"}
    webhook.delete("small")
    assert webhook.placed() == {f"red-{number}" for number in range(4)}


def test_pods_that_wait_in_the_file_have_their_turn_at_the_start(webhook: Running, tmp_path: Path) -> None:
    for number in range(5):
        webhook.admit(builders.pod(f"pod-{number}", request="1"))
    (waiting,) = {f"pod-{number}" for number in range(5)} - webhook.placed()
    saved = json.loads(webhook.state.read_text())
    gone = next(iter(webhook.placed()))
    for item in saved["items"]:
        listed = item.get("spec", {}).get("allocations", [])
        listed[:] = [entry for entry in listed if entry["pod"]["name"] != gone]
    saved["items"] = [item for item in saved["items"] if item["metadata"]["name"] != gone]
    source, state = tmp_path / "later.json", tmp_path / "later-state.json"
    source.write_text(json.dumps(saved))
    with replica.running(tmp_path / "later", f"--from={source}", f"--state={state}"):
        items = json.loads(state.read_text())["items"]
    (pod,) = [item for item in items if item["metadata"]["name"] == waiting]
    assert contract.ALLOCATION in pod["metadata"]["annotations"]


def test_a_dry_run_is_answered_and_forgotten(webhook: Running) -> None:
    planned = webhook.admit(builders.pod(request="0.5"), dryRun=True)
    assert planned["metadata"]["annotations"][contract.NODE] in {"node-a", "node-b"}
    assert webhook.items("Pod") == []
    assert [node.allocations for node in webhook.nodes()] == [(), ()]


@pytest.mark.parametrize(
    ("change", "more"),
    [
        pytest.param({}, {"operation": "UPDATE"}, id="update"),
        pytest.param({}, {"subResource": "ephemeralcontainers"}, id="subresource"),
        pytest.param({"annotations": {}}, {}, id="not-ours"),
    ],
)
def test_other_reviews_pass_unchanged(webhook: Running, change: dict[str, Any], more: dict[str, str]) -> None:
    manifest = builders.pod(request="0.5")
    manifest["metadata"].update(change)
    response = webhook.review(manifest, **more)
    assert response["allowed"]
    assert "patch" not in response


def test_invalid_pod_is_denied_and_the_next_is_served(webhook: Running) -> None:
    broken = builders.pod(request="0.5")
    broken["spec"]["containers"][0]["env"] = "no list"
    status = webhook.review(broken)["status"]
    assert (status["code"], status["message"]) == (400, "spec.containers[0].env is not a list: this is not a valid pod")
    assert webhook.review(builders.pod(request="0.5"))["allowed"]
    assert not webhook.process.logged("Failed to review a pod")


def test_body_that_is_no_review_gets_an_http_error(webhook: Running) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as raised:
        webhook.post(b"{}")
    assert json.load(raised.value) == {"error": "the body is not an AdmissionReview"}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        webhook.post(b"{}", "/elsewhere")
    with pytest.raises(urllib.error.HTTPError, match="413"):
        webhook.post(b" " * (9 << 20))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot read"),
        ("kind: Deployment", "an object of kind 'Deployment'"),
        ("just text", "an object of kind None"),
        ("", "has no GPUNode"),
        ("kind: GPUNode", "metadata.name is missing"),
    ],
)
def test_file_without_a_cluster_is_rejected_with_its_path(tmp_path: Path, text: str, says: str) -> None:
    source = tmp_path / "cluster.yaml"
    source.write_text(text)
    with pytest.raises(memory_cluster.UnreadableError, match=says):
        memory_cluster.read(source)


async def test_a_pod_is_kept_off_nodes_that_it_does_not_select(tmp_path: Path) -> None:
    source = tmp_path / "cluster.json"
    nodes = [codec.to_document(builders.node(name, gpus=2)) for name in ("node-a", "node-b")]
    source.write_text(json.dumps({"kind": "List", "items": nodes}))
    store, _ = memory_cluster.read(source)
    manifest = builders.pod(request="0.5")
    manifest["spec"]["nodeSelector"] = {contract.HOSTNAME_LABEL: "node-b"}
    unfit = store.chooser.node_filter(manifest)
    assert unfit("node-b") is None
    assert unfit("node-a") == "lacks the label kubernetes.io/hostname=node-b of the pod's nodeSelector"


def test_a_pod_that_was_placed_is_resized_by_an_update(webhook: Running) -> None:
    webhook.admit(builders.pod("one", request="0.5", memory="40Gi", uuid="GPU-node-a-0"))
    webhook.admit(builders.pod("two", request="0.3", memory="40Gi", uuid="GPU-node-a-0"))

    def ask(**asked: str) -> tuple[int, int, str]:
        webhook.review(builders.pod("one", uuid="GPU-node-b-1", **asked), operation="UPDATE", name="one")
        (share,) = (
            allocation.shares[0]
            for node in webhook.nodes()
            for allocation in node.allocations
            if allocation.pod.name == "one"
        )
        assert [ledger.violations(node) for node in webhook.nodes()] == [[], []]
        annotations = webhook.pod("one")["metadata"]["annotations"]
        assert annotations[contract.UUID] == "GPU-node-a-0"
        assert (contract.HELD in annotations) == (contract.REASON in annotations)
        return share.request_percent, share.memory_bytes // builders.GIB, annotations.get(contract.REASON, "")

    assert ask(request="0.7", memory="20Gi") == (70, 20, "")
    said = "is not resized yet: node-a/0 has 0 of its compute free, 0.3 more is requested"
    assert ask(request="1", memory="20Gi") == (70, 20, said)
    webhook.delete("two")
    assert ask(request="1", memory="80Gi") == (100, 80, "")


def test_defaults_and_bounds_of_a_namespace_hold_for_new_pods_gangs_and_resizes(webhook: Running) -> None:
    stored = webhook.admit(builders.pod("one", request="0.5"), namespace="bounded", name="one")
    assert stored["metadata"]["annotations"][contract.MEMORY] == "8Gi"
    refused = 'gpushare.io/request of container "main" is 0.6, but the namespace "bounded" has '
    refused += 'max.gpushare.io/request "0.5": write at most "0.5"'
    for more in ({}, {"group": "red", "group_size": "2"}):
        response = webhook.review(builders.pod("two", request="0.6", **more), namespace="bounded")
        assert (response["status"]["code"], response["status"]["message"]) == (403, refused)
    larger = builders.pod("one", request="0.6", memory="8Gi")
    webhook.review(larger, operation="UPDATE", namespace="bounded", name="one")
    assert webhook.pod("one")["metadata"]["annotations"][contract.REASON] == f"is not resized yet: {refused}"
    assert webhook.admit(builders.pod("elsewhere", request="0.6"))["metadata"]["annotations"][contract.ALLOCATION]
    assert [item["metadata"]["name"] for item in webhook.items("Namespace")] == ["bounded"]
