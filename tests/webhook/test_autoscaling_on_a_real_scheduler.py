"""Demand pods with real processes: from zero to three nodes and back, failover, refusals, and pods that are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from lab import access
from tests import builders, rights
from tests.autoscaler import NODES, Autoscaler, NodeGroup
from tests.config import manifests
from tests.webhook import conftest
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

COMPONENT = manifests.CONFIG / "components" / "demand"
PODS = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/pods"
QUOTA = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/resourcequotas/gpushare-demand"
ON = f"--demand-resource={contract.RESOURCE_PERCENT}"


@pytest.fixture(scope="module")
def with_component(scheduler: access.Access) -> Iterator[access.Access]:
    for administrator in conftest.installed(scheduler):
        for name in ("namespace", "template", "rights", "policy"):
            administrator.kubectl("apply", "--server-side", f"--filename={COMPONENT / name}.yaml")
        administrator.ensure_default_service_account(contract.DEMAND_NAMESPACE)
        yield administrator
        administrator.kubectl("delete", "--ignore-not-found", f"--filename={COMPONENT / 'policy.yaml'}")


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


def asking(name: str, *, cpu: str = "1", **annotations: str) -> dict[str, Any]:
    made = builders.pod(name, **annotations)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


def test_from_zero_to_three_nodes_and_back(empty: Cluster) -> None:
    started = empty.start(ON, "--demand-products=NVIDIA-A100=80Gi")
    autoscaler = Autoscaler(empty.administrator, (NodeGroup("pool", gpus=1),), boot_seconds=1.0, unneeded_seconds=6.0)
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
