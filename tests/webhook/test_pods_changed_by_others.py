"""Pods that other webhooks change before and after gpushare, as in public reports about Kueue, Kuma, Linkerd, Istio,
Kyverno and others.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jsonpatch
import pytest

from gpushare import contract, ledger, pod
from gpushare import request as requests
from gpushare.gpunode import GpuNode
from tests import builders
from tests.webhook import admission_chain
from tests.webhook.admission_chain import Chain, annotate, gate, node, selector, sidecar
from webhook.pods.stored_pod import Pod

KUEUE = "kueue.x-k8s.io/admission"


def two_pools() -> Chain:
    return Chain([node("node-a", {"pool": "train"}, cpu="4"), node("node-b", {"pool": "serve"}, cpu="16")])


@pytest.mark.parametrize("at", [0, -1])
def test_a_sidecar_behind_us_changes_nothing(at: int) -> None:
    chain = Chain([node("node-a")])
    stored = chain.create(builders.pod(request="0.5"), behind=[sidecar(at)])
    assert [answer.outcome for answer in stored.answers] == ["placed", "kept"]
    assert stored.sharers == ["main"]
    (entry,) = chain.allocations()["node-a"]
    assert entry.shares[0].containers == ("main",)


def test_sidecar_inserted_after_us_does_not_change_a_gated_pod() -> None:
    chain = Chain([node("node-a")])
    stored = chain.create(builders.pod(request="0.5", model="none"), behind=[sidecar(0)])
    assert [answer.outcome for answer in stored.answers] == ["gated", "gated"]
    assert stored.sharers == ["main"]


def test_a_sidecar_in_front_before_us_has_the_share_and_is_named() -> None:
    stored = Chain([node("node-a")]).create(builders.pod(request="0.5"), before=[sidecar(0)])
    said = 'the share is for container "proxy", the first of 2: to give it to another, write gpushare.io/container'
    assert [answer.warnings for answer in stored.answers] == [(said,)]
    assert stored.sharers == ["proxy"]


@pytest.mark.parametrize("chosen", [contract.CONTAINER, pod.DEFAULT_CONTAINER])
def test_a_pod_that_names_its_container_is_not_warned(chosen: str) -> None:
    manifest = builders.pod(request="0.5")
    manifest["metadata"]["annotations"][chosen] = "main"
    stored = Chain([node("node-a")]).create(manifest, before=[sidecar(0)])
    assert (stored.answers[0].warnings, stored.sharers) == ((), ["main"])


def test_default_container_of_a_running_pod_does_not_move_its_share() -> None:
    stored = Chain([node("node-a")]).create(builders.pod(request="0.5", containers=("main", "side"))).pod
    stored["metadata"]["annotations"][pod.DEFAULT_CONTAINER] = "side"
    request = Pod.from_manifest(stored).request
    assert isinstance(request, requests.Request)
    assert [demand.containers for demand in request.demands] == [("main",)]


def test_keys_for_the_first_container_alone_leave_a_sidecar_without_a_share() -> None:
    manifest = builders.pod(request="0.5")
    manifest["metadata"]["annotations"][f"{contract.REQUEST}.main"] = "0.3"
    stored = Chain([node("node-a")]).create(manifest, behind=[sidecar(0)])
    assert ([answer.outcome for answer in stored.answers], stored.sharers) == (["placed", "kept"], ["main"])


def test_gate_added_by_a_later_webhook_releases_the_share() -> None:
    chain = Chain([node("node-a")])
    stored = chain.create(builders.pod(request="1"), behind=[gate(KUEUE)])
    assert [answer.outcome for answer in stored.answers] == ["placed", "gated"]
    assert chain.allocations() == {}
    assert sorted(stored.gates) == [contract.SCHEDULING_GATE, KUEUE]
    assert KUEUE in stored.annotations[contract.REASON]
    assert (
        not {contract.ALLOCATION, contract.NODE, contract.GPU_UUIDS, contract.OWN_HOSTNAME} & stored.annotations.keys()
    )
    assert not stored.pod["spec"].get("nodeSelector")
    assert stored.sharers == ["main"]  # quotas count it
    assert Pod.from_manifest(stored.pod).waits


def test_a_gate_behind_us_leaves_the_host_that_the_user_named() -> None:
    manifest = builders.pod(request="1")
    manifest["spec"]["nodeSelector"] = {contract.HOSTNAME_LABEL: "node-b"}
    stored = two_pools().create(manifest, behind=[gate(KUEUE)])
    assert stored.pod["spec"]["nodeSelector"] == {contract.HOSTNAME_LABEL: "node-b"}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (selector("pool", "train"), "node-a"),
        (selector("pool", "serve"), "node-b"),
        (selector(contract.HOSTNAME_LABEL, "node-a"), "node-a"),
        (selector(contract.HOSTNAME_LABEL, "node-b"), "node-b"),
        (admission_chain.requests("cpu", "8"), "node-b"),
        (sidecar(0, requests={"cpu": "8"}), "node-b"),
    ],
)
def test_a_pod_that_no_longer_fits_its_node_is_placed_again(change: admission_chain.Webhook, where: str) -> None:
    chain = two_pools()
    stored = chain.create(builders.pod(request="0.5"), behind=[change])
    assert stored.annotations[contract.NODE] == where
    assert {name: len(held) for name, held in chain.allocations().items()} == {where: 1}
    assert stored.pod["spec"]["nodeSelector"][contract.HOSTNAME_LABEL] == where
    assert stored.answers[-1].warnings == ()


def test_pod_that_no_longer_fits_is_gated_without_a_share() -> None:
    chain = two_pools()
    stored = chain.create(builders.pod(request="0.5"), behind=[selector("pool", "elsewhere")])
    assert (stored.answers[-1].outcome, chain.allocations()) == ("gated", {})
    assert "lacks the label pool=elsewhere" in stored.annotations[contract.REASON]
    assert stored.pod["spec"]["nodeSelector"] == {"pool": "elsewhere"}


def test_a_gpu_that_fails_meanwhile_is_not_kept() -> None:
    chain = Chain([node("node-a")])
    placed = chain.create(builders.pod(request="0.5")).pod
    chain.store.change("node-a", _unhealthy)
    stored = chain.create(placed)
    assert (stored.answers[-1].outcome, chain.allocations()) == ("gated", {})


def _unhealthy(now: GpuNode) -> GpuNode:
    return dataclasses.replace(now, gpus=tuple(dataclasses.replace(gpu, healthy=False) for gpu in now.gpus))


def test_pod_denied_on_reinvocation_has_no_reservation() -> None:
    chain = Chain([node("node-a")])
    placed = chain.create(builders.pod(request="0.5")).pod
    placed["spec"]["hostPID"] = True
    assert not chain.review(placed).allowed
    assert chain.allocations() == {}


def test_dry_run_keeps_an_existing_reservation() -> None:
    chain = Chain([node("node-a")])
    placed = chain.create(builders.pod(request="0.5")).pod
    gated = copy.deepcopy(placed)
    gate(KUEUE)(gated)
    assert chain.review(gated, dryRun=True).outcome == "planned"
    assert len(chain.allocations()["node-a"]) == 1


def test_reinvoked_dry_run_is_not_bound_to_its_first_node() -> None:
    chain, pod = two_pools(), builders.pod(request="0.5")
    for pool in ("train", "serve", "train"):
        answer = chain.review(pod, dryRun=True)
        planned = jsonpatch.apply_patch(pod, list(answer.patch))
        selector("pool", pool)(planned)
        again = jsonpatch.apply_patch(planned, list(chain.review(planned, dryRun=True).patch))
        assert again["metadata"]["annotations"][contract.NODE] == ("node-a" if pool == "train" else "node-b")
    assert chain.allocations() == {}


def test_request_changed_by_a_later_webhook_is_met() -> None:
    chain = Chain([node("node-a")])
    stored = chain.create(builders.pod(request="0.5"), behind=[annotate(contract.MEMORY, "4Gi")])
    (entry,) = chain.allocations()["node-a"]
    assert entry.shares[0].memory_bytes == 4 * builders.GIB
    assert stored.pod["spec"]["containers"][0]["resources"]["limits"][contract.RESOURCE_MEMORY] == "4Gi"


def copied(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as in a backup."""
    again = copy.deepcopy(stored)
    again["metadata"]["labels"]["velero.io/restore-name"] = "r1"
    return again


def test_a_copy_in_another_cluster_goes_where_there_is_room() -> None:
    stored = Chain([node("old-1")]).create(builders.pod(request="0.5")).pod
    again = Chain([node("new-1")]).create(copied(stored))
    assert again.annotations[contract.NODE] == "new-1"
    assert again.pod["spec"]["nodeSelector"] == {contract.HOSTNAME_LABEL: "new-1"}
    assert contract.OWN_HOSTNAME not in again.annotations
    said = 'spec.nodeSelector kubernetes.io/hostname "old-1" was set by gpushare in the pod that this is a copy of'
    assert any(warning.startswith(said) for warning in again.answers[0].warnings)


def test_a_copy_keeps_the_host_that_its_user_named() -> None:
    manifest = builders.pod(request="0.5")
    manifest["spec"]["nodeSelector"] = {contract.HOSTNAME_LABEL: "old-1"}
    chain = Chain([node("old-1"), node("old-2")])
    again = chain.create({**copied(chain.create(manifest).pod), "metadata": {**manifest["metadata"], "name": "copy"}})
    assert again.annotations[contract.OWN_HOSTNAME] == again.annotations[contract.NODE] == "old-1"


def test_copy_of_a_resized_pod_gets_the_amounts_in_its_annotations() -> None:
    stored = Chain([node("node-a")]).create(builders.pod(request="0.5", memory="1Gi")).pod
    stored["metadata"]["annotations"][contract.MEMORY] = "2Gi"  # its resources are those of its birth
    chain = Chain([node("node-a")])
    again = chain.create(copied(stored))
    assert chain.allocations()["node-a"][0].shares[0].memory_bytes == 2 * builders.GIB
    assert again.pod["spec"]["containers"][0]["resources"]["requests"][contract.RESOURCE_MEMORY] == "2Gi"
    assert any("do not match the annotations" in warning for warning in again.answers[0].warnings)


def test_a_copy_for_another_container_leaves_nothing_on_the_first() -> None:
    stored = Chain([node("node-a")]).create(builders.pod(request="0.5", containers=("main", "side"))).pod
    stored["metadata"]["annotations"][contract.CONTAINER] = "side"
    assert Chain([node("node-a")]).create(copied(stored)).sharers == ["side"]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/nothing", "rdma/hca", "gpushare.io/gpu-percent"])
def test_amount_of_zero_counts_as_absent(resource: str) -> None:
    manifest = builders.pod(request="0.5", containers=("main", "side"))
    for container in manifest["spec"]["containers"]:
        container["resources"] = {"limits": {resource: "0"}, "requests": {resource: "0"}}
    manifest["spec"]["containers"][1]["env"] = [{"name": contract.ENV_VISIBLE_DEVICES, "value": "all"}]
    stored = Chain([node("node-a")]).create(manifest)
    assert stored.pod["spec"]["containers"][1]["env"] == [{"name": contract.ENV_VISIBLE_DEVICES, "value": "void"}]
    assert any('"side" was replaced by void' in warning for warning in stored.answers[0].warnings)


def test_the_users_variables_may_refer_to_ours() -> None:
    manifest = builders.pod(request="0.5", memory="1Gi")
    manifest["spec"]["containers"][0]["env"] = [{"name": "A", "value": "$(GPUSHARE_MEMORY)"}]
    names = [entry["name"] for entry in Chain([node("node-a")]).create(manifest).pod["spec"]["containers"][0]["env"]]
    assert names.index("A") > names.index(contract.ENV_MEMORY)


def test_windows_pods_get_no_share() -> None:
    manifest = builders.pod(request="0.5")
    manifest["spec"]["os"] = {"name": "windows"}
    answer = Chain([node("node-a")]).review(manifest)
    assert not answer.allowed
    assert 'spec.os.name "windows"' in answer.message


@pytest.mark.parametrize(
    ("restarts", "held"),
    [
        (None, {"GPU-node-a-0": (80, 8 << 30)}),
        ("Always", {"GPU-node-a-0": (80, 8 << 30), "GPU-node-a-1": (70, 4 << 30)}),
    ],
)
def test_an_init_container_uses_the_gpu_before_the_app_does(
    restarts: str | None, held: dict[str, tuple[int, int]]
) -> None:
    manifest = builders.pod()
    manifest["metadata"]["annotations"] = {
        f"{contract.REQUEST}.warm": "0.8",
        f"{contract.MEMORY}.warm": "8Gi",
        f"{contract.REQUEST}.main": "0.7",
        f"{contract.MEMORY}.main": "4Gi",
    }
    manifest["spec"]["initContainers"] = [{"name": "warm", "image": "x", "restartPolicy": restarts}]
    chain = Chain([node("node-a")])
    stored = chain.create(manifest, behind=[sidecar(0)])
    assert [(answer.outcome, answer.warnings) for answer in stored.answers] == [("placed", ()), ("kept", ())]
    (entry,) = chain.allocations()["node-a"]
    assert {uuid: ledger.held(entry, uuid) for uuid in entry.gpu_uuids} == held


def test_refusal_names_what_containers_use_in_turn() -> None:
    manifest = builders.in_turn(warm="0.8", main="0.7", model="none")
    stored = Chain([node("node-a")]).create(manifest)
    assert stored.annotations[contract.REASON].startswith(
        "no GPU fits 0.8 GPU with 80% of the memory and then 0.7 GPU with 70% of the memory:"
    )


def test_inserted_init_container_does_not_move_the_share() -> None:
    manifest = builders.pod()
    manifest["metadata"]["annotations"] = {f"{contract.REQUEST}.warm": "0.8", f"{contract.REQUEST}.main": "0.7"}
    manifest["spec"]["initContainers"] = [{"name": "warm", "image": "x"}]

    def in_front(changed: dict[str, Any]) -> None:
        if len(changed["spec"]["initContainers"]) == 1:
            changed["spec"]["initContainers"].insert(0, {"name": "mesh-init", "image": "x"})

    stored = Chain([node("node-a")]).create(manifest, behind=[in_front])
    assert [answer.outcome for answer in stored.answers] == ["placed", "kept"]


def test_an_unbound_local_volume_decides_the_node() -> None:
    manifest = builders.pod(request="0.5")
    manifest["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    name = {"key": contract.HOSTNAME_LABEL, "operator": "In", "values": ["node-2"]}
    disk = {"storageClassName": "local", "capacity": {"storage": "1Ti"}, "accessModes": ["ReadWriteOnce"]}
    asked = {
        "storageClassName": "local",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Ti"}},
    }
    storage = [
        {
            "kind": "StorageClass",
            "metadata": {"name": "local"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "kind": "PersistentVolume",
            "metadata": {"name": "disk"},
            "spec": {**disk, "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [name]}]}}},
        },
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"}, "spec": asked},
    ]
    chain = Chain([node(f"node-{number}") for number in range(4)], storage=storage)
    assert chain.create(manifest).annotations[contract.NODE] == "node-2"
