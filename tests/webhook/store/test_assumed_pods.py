"""Capacity that was promised to a pod is used from that moment, and free again if the pod is not placed."""

from __future__ import annotations

from typing import Any

from gpushare import codec, contract, ledger
from gpushare import request as requests
from gpushare.allocation import PodRef
from gpushare.nodefilters import share_resources
from gpushare.refusal import Refusal
from tests import builders
from webhook.pods import mutation
from webhook.store import memory_store
from webhook.store.reservation import Reservation

STATUS: dict[str, Any] = {
    "conditions": [{"type": "Ready", "status": "True"}],
    "allocatable": {"cpu": "2", "pods": "110", contract.RESOURCE_PERCENT: "100", contract.RESOURCE_IDLE: "64"},
}
NODE = {"metadata": {"name": "node-a", "labels": {contract.HOSTNAME_LABEL: "node-a"}}, "status": STATUS}


def asking(name: str = "trainer", cpu: str = "2", **annotations: str) -> dict[str, Any]:
    made = builders.pod(name, **(annotations or {"request": "0.1"}))
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


def store(*pods: dict[str, Any]) -> memory_store.MemoryStore:
    return memory_store.MemoryStore([codec.to_document(builders.node(gpus=1))], [NODE], pods)


async def reserve(on: memory_store.MemoryStore, manifest: dict[str, Any]) -> mutation.Placed | Refusal:
    reserving = Reservation(on, policy="pack")
    return await reserving.reserve(manifest, requests.parse(manifest), PodRef("default", manifest["metadata"]["name"]))


async def test_assumed_pod_counts_until_its_allocation_is_gone() -> None:
    on = store()
    placed = await reserve(on, asking("first"))
    assert isinstance(placed, mutation.Placed)
    refused = await reserve(on, asking("second"))
    assert isinstance(refused, Refusal)
    assert "node-a has 0 of 2 CPUs free, 2 are requested" in refused.reason
    on.change("node-a", lambda node: ledger.release(node, [placed.allocation_id]))
    assert isinstance(await reserve(on, asking("second")), mutation.Placed)


def test_assumed_pod_does_not_count_against_itself_or_twice() -> None:
    on = store()
    manifest = asking()
    on.assume(manifest, requests.parse(manifest), "node-a", "one")
    assert on.chooser.node_filter(manifest)("node-a") is None
    assert on.chooser.node_filter(asking("other"))("node-a") is not None
    on.assume(manifest, requests.parse(manifest), "node-b", "two")
    assert on.chooser.node_filter(asking("other"))("node-a") is None


def test_assumption_ends_on_request_and_only_once() -> None:
    on = store()
    manifest = asking()
    first = on.assume(manifest, requests.parse(manifest), "node-a", "one")
    on.assume(manifest, requests.parse(manifest), "node-a", "two")
    first()
    assert on.chooser.node_filter(asking("other"))("node-a") is not None


def test_pods_in_the_file_take_room() -> None:
    there = {**asking("there"), "spec": {**asking("there")["spec"], "nodeName": "node-a"}}
    assert store(there).chooser.node_filter(asking())("node-a") == "has 0 of 2 CPUs free, 2 are requested"
    assert store({**there, "status": {"phase": "Failed"}}).chooser.node_filter(asking())("node-a") is None


def test_our_own_resources_are_counted_before_they_are_in_the_pod() -> None:
    assert store().chooser.node_filter(asking(request="0.5"))("node-a") is None
    sick = {**STATUS, "allocatable": {**STATUS["allocatable"], contract.RESOURCE_PERCENT: "40"}}
    on = memory_store.MemoryStore([codec.to_document(builders.node(gpus=1))], [{**NODE, "status": sick}])
    manifest = asking(request="0.5")
    said = "has 40 of 40 gpushare.io/gpu-percent free, 50 are requested; its GPUs have more, but its agent does not offer it yet"
    assert on.chooser.node_filter(manifest)("node-a") == said
    assert share_resources.equipped(share_resources.equipped(manifest)) == share_resources.equipped(manifest)


async def test_refusal_names_full_gpus() -> None:
    on = store()
    assert isinstance(await reserve(on, asking("first", "0", request="0.8")), mutation.Placed)
    refused = await reserve(on, asking("second", "0", request="0.5"))
    assert isinstance(refused, Refusal)
    assert "with too little compute free" in refused.reason


def test_pod_without_a_valid_request_keeps_its_own_resources() -> None:
    plain = builders.pod()
    plain["spec"]["containers"][0]["resources"] = {"requests": {contract.RESOURCE_PERCENT: "30"}}
    nonsense = asking(request="much")
    assert share_resources.equipped(plain) is plain
    assert share_resources.equipped(nonsense) is nonsense
