"""Demand pods with real processes: from zero to three nodes and back, failover, refusals, and pods that are deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from lab import access
from tests import builders, rights
from tests.autoscaler import NODES, Autoscaler, NodeGroup
from tests.config import manifests
from tests.provisioning_request_crd import CRD
from tests.webhook import components, conftest
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from webhook.controllers.demand import gang_demand, provisioning_requests

pytestmark = pytest.mark.apiserver

GANGS = [f"--filename={manifests.CONFIG / 'components' / 'demand-gangs' / name}.yaml" for name in ("rights", "policy")]
PODS = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/pods"
QUOTA = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/resourcequotas/gpushare-demand"
# A placer opens a GPUNode whose deletion it may have missed only after the lifetime of a reservation.
ON = (f"--demand-resource={contract.RESOURCE_PERCENT}", "--reservation-seconds=2")


@pytest.fixture(scope="module")
def with_component(scheduler: access.Access) -> Iterator[access.Access]:
    yield from components.installed(scheduler, "demand", contract.DEMAND_NAMESPACE)


@pytest.fixture
def empty(with_component: access.Access, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without nodes, with a real scheduler."""
    for cluster in conftest.prepared(with_component, tmp_path):
        for path in (contract.GPUNODE_PATH, NODES):
            cluster.administrator.delete(f"{path}/node-a")
        yield cluster
        cluster.administrator.delete(PODS)


def reason(cluster: Cluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["annotations"].get(contract.REASON, ""))


def demand_pods(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.administrator.read(PODS)["items"])


def is_bound(cluster: Cluster, *names: str) -> bool:
    return all(cluster.pod(name)["spec"].get("nodeName") for name in names)


def asking(name: str, *, cpu: str = "1", **annotations: Any) -> dict[str, Any]:
    made = builders.pod(name, **annotations)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


def test_from_zero_to_three_nodes_and_back(empty: Cluster) -> None:
    started = empty.start(*ON, "--demand-products=NVIDIA-A100=80Gi")
    groups = (NodeGroup("pool", gpus=1),)
    autoscaler = Autoscaler(empty.administrator, empty.namespace, groups, boot_seconds=1.0, unneeded_seconds=6.0)
    names = [f"half-{number}" for number in range(5)]
    for name in names:
        empty.create(asking(name, request="0.5"))
    until(lambda: reason(empty, names[-1]).endswith("; waits for a node: 3 GPUs asked for"), started.explain)
    assert len(demand_pods(empty)) == 3
    assert started.metric("gpushare_placer_demanded_gpus") == 3

    def scaled(bound: bool) -> bool:
        autoscaler.step()
        return is_bound(empty, *names) if bound else not autoscaler.nodes()

    until(lambda: scaled(True), started.explain, seconds=60)
    assert autoscaler.started == 3, started.explain()
    until(lambda: demand_pods(empty) == [], started.explain)
    assert all(contract.REASON not in empty.pod(name)["metadata"]["annotations"] for name in names)
    for name in names:
        empty.delete(name)
    until(lambda: scaled(False), started.explain, seconds=60)
    assert autoscaler.started == 3
    used = rights.used_on(empty.administrator, contract.WEBHOOK_SERVICE_ACCOUNT)
    assert {("pods", "create"), ("pods", "delete")} <= used


def test_a_gang_and_large_pods_get_nodes_with_enough_gpus(empty: Cluster) -> None:
    empty.add_node(builders.node("old", gpus=2))
    amounts = {contract.RESOURCE_PERCENT: "200", contract.RESOURCE_MEMORY: "160Gi", contract.RESOURCE_IDLE: "128"}
    empty.describe("old", {"cpu": "8", "memory": "64Gi", "pods": "110", **amounts})
    started = empty.start(*ON)
    groups = (NodeGroup("small", gpus=1), NodeGroup("large", gpus=4, cpu="32"))
    autoscaler = Autoscaler(empty.administrator, empty.namespace, groups, unneeded_seconds=60.0)
    for number in range(3):
        empty.create(asking(f"member-{number}", request="1", group="gang", group_size="3"))

    def placed(*names: str) -> bool:
        autoscaler.step()
        return is_bound(empty, *names)

    # The gang holds nothing while one of its pods does not fit, but only one GPU is missing.
    until(lambda: placed("member-0", "member-1", "member-2"), started.explain, seconds=60)
    assert autoscaler.nodes() == ["small-0"]
    empty.create(asking("four", gpus="4"))
    until(lambda: placed("four"), started.explain, seconds=60)
    assert autoscaler.nodes() == ["large-1", "small-0"]
    until(lambda: demand_pods(empty) == [], started.explain)


def test_another_placer_continues_and_pods_that_are_deleted_ask_no_more(empty: Cluster) -> None:
    first, second = empty.start(*ON), empty.start(*ON)
    placing, other = (first, second) if first.metric("gpushare_placer_leads") else (second, first)
    for name in ("one", "two"):
        empty.create(asking(name, gpus="1"))
    until(lambda: len(demand_pods(empty)) == 2, placing.explain)
    before = {made["metadata"]["uid"] for made in demand_pods(empty)}
    empty.kill(placing)
    until(lambda: bool(other.metric("gpushare_placer_demanded_gpus") == 2), other.explain)
    assert {made["metadata"]["uid"] for made in demand_pods(empty)} == before  # taken over, not asked for again
    empty.delete("one")
    until(lambda: len(demand_pods(empty)) == 1, other.explain)
    # A demand pod that another client deletes comes back, and one that outlived its placer does not stay.
    empty.administrator.delete(PODS)
    until(lambda: len(demand_pods(empty)) == 1, other.explain)
    empty.kill(other)
    empty.delete("two")
    third = empty.start(*ON)
    until(lambda: demand_pods(empty) == [], third.explain)


def test_what_the_api_server_refuses_is_said_on_the_waiting_pods(empty: Cluster) -> None:
    # Without a quota controller the status stays as it is written here.
    tight = {"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}}
    loose = {"status": {"hard": {"pods": "16"}, "used": {"pods": "0"}}}
    empty.administrator.patch(f"{QUOTA}/status", tight)
    try:
        started = empty.start(*ON, "--demand-max-gpus=2")
        for name in ("a", "b", "c"):
            empty.create(asking(name, gpus="1"))
        bound = "; asks for no node: no more than 2 GPUs are asked for (--demand-max-gpus)"
        until(lambda: reason(empty, "c").endswith(bound), started.explain)
        until(lambda: "; asks for no node: " in reason(empty, "b"), started.explain)
        assert "exceeded quota: gpushare-demand" in reason(empty, "b")
        assert reason(empty, "a").endswith("; waits for a node: 1 GPU asked for")
        empty.create(asking("special", request="1", model="H100"))
        no_kind = "; asks for no node: it fits on no GPU that is known (--demand-products), even if that is empty"
        until(lambda: reason(empty, "special").endswith(no_kind), started.explain)
    finally:
        empty.administrator.patch(f"{QUOTA}/status", loose)
    until(lambda: len(demand_pods(empty)) == 2, started.explain, seconds=30)


@pytest.fixture
def provisioned(empty: Cluster) -> Iterator[Cluster]:
    """With the CustomResourceDefinition of ProvisioningRequests."""
    empty.kubectl("apply", "--server-side", "--filename=-", input=json.dumps(CRD))
    name = str(CRD["metadata"]["name"])
    empty.administrator.wait_until_established(name)
    empty.kubectl("apply", "--server-side", *GANGS)
    yield empty
    empty.kubectl("delete", "--wait=false", *GANGS)
    empty.kubectl("delete", "crd", name)


def test_a_gang_gets_all_of_its_nodes_from_a_provisioning_request_or_none(provisioned: Cluster) -> None:
    cluster = provisioned
    started = cluster.start(*ON, f"--demand-provisioning-class={gang_demand.ATOMIC}")
    few, many = NodeGroup("few", gpus=1, max_nodes=2), NodeGroup("many", gpus=1, max_nodes=4)
    autoscaler = Autoscaler(
        cluster.administrator, cluster.namespace, (few, many), boot_seconds=1.0, unneeded_seconds=3.0, provisions=True
    )

    def step(look: Callable[[], bool]) -> bool:
        autoscaler.step()
        return look()

    names = [f"member-{number}" for number in range(3)]
    for name in names:
        cluster.create(asking(name, request="1", group="gang", group_size="3"))
    until(lambda: "3 GPUs asked for together" in reason(cluster, names[-1]), started.explain)
    assert started.metric("gpushare_placer_demanded_gpus") == 3
    until(lambda: step(lambda: is_bound(cluster, *names)), started.explain, seconds=60)
    assert autoscaler.nodes() == ["many-0", "many-1", "many-2"]  # the first group could not have had all
    until(lambda: cluster.administrator.read(provisioning_requests.PATH)["items"] == [], started.explain)
    assert demand_pods(cluster) == []

    # No group can have five at once, so none of them starts, and the reason says so.
    large = [f"large-{number}" for number in range(5)]
    for name in large:
        cluster.create(asking(name, request="1", group="large", group_size="5"))
    until(lambda: step(lambda: "CapacityIsNotFound: Capacity" in reason(cluster, large[0])), started.explain)
    autoscaler.ahead_seconds = gang_demand.VALID_SECONDS
    failed = "asks for no nodes: the autoscaler gave up: CapacityIsNotFound: the request is no longer valid"
    until(lambda: step(lambda: reason(cluster, large[0]).endswith(failed)), started.explain)
    assert autoscaler.started == 3
    for name in large:
        cluster.delete(name)
    paths = provisioning_requests.PATH, f"{provisioning_requests.TEMPLATES_PATH}?labelSelector={contract.DEMAND_LABEL}"
    until(lambda: not any(cluster.administrator.read(path)["items"] for path in paths), started.explain)
    used = rights.used_on(cluster.administrator, contract.WEBHOOK_SERVICE_ACCOUNT)
    resources = "provisioningrequests.autoscaling.x-k8s.io", "podtemplates"
    assert {(what, verb) for what in resources for verb in ("list", "create", "delete")} <= used
    for name in names:
        cluster.delete(name)
    until(lambda: step(lambda: autoscaler.nodes() == []), started.explain, seconds=60)


def test_pods_that_another_node_would_not_help_ask_for_none(empty: Cluster) -> None:
    empty.add_node(builders.node("old"))
    amounts = {contract.RESOURCE_PERCENT: "400", contract.RESOURCE_MEMORY: "320Gi", contract.RESOURCE_IDLE: "256"}
    empty.describe("old", {"cpu": "8", "memory": "64Gi", "pods": "110", **amounts})
    started = empty.start(*ON)
    alone = asking("alone", request="0.5")
    near = {"labelSelector": {"matchLabels": {"app": "nobody"}}, "topologyKey": contract.HOSTNAME_LABEL}
    alone["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    empty.create(alone)
    useless = "; asks for no node, as another would not help: old is empty and "
    until(lambda: useless in reason(empty, "alone"), started.explain)
    assert demand_pods(empty) == []
