"""Gangs that ask for nodes by a ProvisioningRequest: one for each, followed as the autoscaler answers."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.cluster import api_errors
from gpushare.gpunode import GpuNode
from tests.webhook.controllers.test_demand_controller import NOW, Cluster, excluded, full, gated
from webhook.controllers.demand import provisioning_requests
from webhook.controllers.demand.provisioning_requests import ATOMIC, PATH, RETRY_SECONDS, TEMPLATES_PATH, VALID_SECONDS

TOGETHER = "waits for nodes: 3 GPUs asked for together"


def cluster_with(*nodes: GpuNode, max_gpus: int = 16) -> Cluster:
    made = Cluster(*nodes, max_gpus=max_gpus, provisioning_class=ATOMIC)
    made.api.collections |= {PATH: {}, TEMPLATES_PATH: {}}
    return made


def gang(size: int = 3, *, name: str = "g", **asks: Any) -> list[dict[str, Any]]:
    asks = {"gpus": "1", **asks}
    return [gated(f"{name}{number}", group=name, group_size=str(size), **asks) for number in range(size)]


def requests(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.api.collections[PATH].values())


def answer(cluster: Cluster, kind: str, *, status: str = "True", reason: str = "R", message: str = "") -> None:
    """Write a condition of the only request, as Cluster Autoscaler does."""
    (one,) = requests(cluster)
    moment = datetime.datetime.fromtimestamp(NOW + cluster.now, datetime.UTC).isoformat()
    conditions = one.setdefault("status", {}).setdefault("conditions", [])
    conditions.append(
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": moment}
    )


async def test_a_gang_asks_once_for_all_that_it_lacks() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    single = gated("single", gpus="2")
    said = await cluster.reasons(*gang(), single)
    assert said == [TOGETHER] * 3 + ["waits for a node: 2 GPUs asked for"]
    (one,) = requests(cluster)
    (template,) = cluster.api.collections[TEMPLATES_PATH].values()
    assert one["spec"] == {
        "provisioningClassName": ATOMIC,
        "podSets": [{"podTemplateRef": {"name": template["metadata"]["name"]}, "count": 3}],
        "parameters": {"ValidUntilSeconds": str(VALID_SECONDS)},
    }
    assert template["metadata"]["ownerReferences"][0]["uid"] == one["metadata"]["uid"]
    (container,) = template["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"gpushare.io/gpu-percent": "100"}
    (pod,) = cluster.api.pods.values()
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"gpushare.io/gpu-percent": "200"}
    await cluster.reasons(*gang(), single)
    assert requests(cluster) == [one]
    await cluster.reasons(single)
    assert requests(cluster) == []


async def test_requests_exclude_the_same_nodes_as_demand_pods() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    cluster.describe("node-b")
    await cluster.reasons(*gang())
    (template,) = cluster.api.collections[TEMPLATES_PATH].values()
    with_pod = {"spec": template["template"]["spec"]}
    await cluster.reasons(gated("single", gpus="1"))
    (pod,) = cluster.api.pods.values()
    assert excluded(with_pod) == excluded(pod)


async def test_conditions_of_the_autoscaler_change_the_reason() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    (one,) = requests(cluster)
    name = one["metadata"]["name"]
    unread = f"{TOGETHER}, by the ProvisioningRequest gpushare-demand/{name}, not accepted yet"
    assert await cluster.reasons(*gang()) == [unread] * 3
    answer(cluster, "Accepted")
    assert await cluster.reasons(*gang()) == [TOGETHER] * 3
    answer(cluster, "Provisioned", status="False", reason="CapacityIsNotFound", message="no node group fits")
    assert await cluster.reasons(*gang()) == [f"{TOGETHER}: CapacityIsNotFound: no node group fits"] * 3
    one["status"]["conditions"].pop()
    answer(cluster, "Provisioned")
    assert await cluster.reasons(*gang()) == ["waits for nodes: 3 GPUs provisioned"] * 3
    # One node is there: what was provisioned stays, as the other nodes may still start.
    assert await cluster.reasons(*gang()[1:]) == ["waits for nodes: 3 GPUs provisioned"] * 2
    assert requests(cluster) == [one]
    answer(cluster, "BookingExpired")
    assert await cluster.reasons(*gang()) == [f"{TOGETHER}: R"] * 3
    assert requests(cluster) == []
    await cluster.reasons(*gang())
    assert len(requests(cluster)) == 1


async def test_nodes_that_never_come_are_asked_for_again() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    answer(cluster, "Provisioned")
    cluster.now += VALID_SECONDS
    await cluster.reasons(*gang())
    assert requests(cluster) == []


async def test_a_failure_is_the_reason_of_the_gangs_pods_until_the_next_try() -> None:
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=3)
    await cluster.reasons(*gang())
    answer(cluster, "Failed", reason="CapacityIsNotFound", message="node group pool is at its limit")
    failed = "asks for no nodes: the autoscaler failed: CapacityIsNotFound: node group pool is at its limit"
    # It takes nothing from the bound meanwhile.
    others = [gated(f"s{number}", gpus="1") for number in range(3)]
    single = "waits for a node: 3 GPUs asked for"
    assert await cluster.reasons(*gang(), *others) == [failed] * 3 + [single] * 3
    cluster.now += RETRY_SECONDS
    assert await cluster.reasons(*gang()) == [failed] * 3
    assert await cluster.reasons(*gang()) == [TOGETHER] * 3


async def test_a_request_changes_with_the_gang_before_nodes_start() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    answer(cluster, "Accepted")
    await cluster.reasons(*gang()[1:])
    assert requests(cluster) == []
    assert (await cluster.reasons(*gang()[1:]))[0] == "waits for nodes: 2 GPUs asked for together"


async def test_gang_asks_for_all_its_gpus_or_none_within_the_maximum() -> None:
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=4)
    bound = "asks for no nodes: no more than 4 GPUs are asked for (--demand-max-gpus)"
    single = gated("single", gpus="2")
    # Pods ahead of the gang come first; pods behind it get what it leaves.
    assert await cluster.reasons(single, *gang()) == ["waits for a node: 2 GPUs asked for"] + [bound] * 3
    behind = "asks for no node: no more than 4 GPUs are asked for (--demand-max-gpus)"
    assert await cluster.reasons(*gang(), single) == [TOGETHER] * 3 + [behind]
    # Without an answer, it takes nothing from them for long.
    cluster.now += provisioning_requests.UNANSWERED_SECONDS
    (one,) = requests(cluster)
    one["metadata"]["creationTimestamp"] = datetime.datetime.fromtimestamp(NOW, datetime.UTC).isoformat()
    assert (await cluster.reasons(*gang(), single))[3] == "waits for a node: 2 GPUs asked for"
    assert set(await cluster.reasons(*gang(5, name="large"))) == {f"{bound}, and the gang needs more"}


async def test_four_gangs_ask_for_nodes_at_a_time() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    several = [pod for number in range(5) for pod in gang(2, name=f"g{number}x")]
    said = await cluster.reasons(*several)
    assert said[-2:] == ["asks for no nodes: no more than 4 gangs ask for nodes at a time"] * 2
    assert len(requests(cluster)) == 4


async def test_a_cluster_without_the_crd_says_so() -> None:
    cluster = Cluster(full("node-a"), provisioning_class=ATOMIC)
    missing = (
        "asks for no nodes: the cluster has no ProvisioningRequest (autoscaling.x-k8s.io/v1): install its CRD, or "
        "remove --demand-provisioning-class"
    )
    single = gated("single", gpus="1")
    said = await cluster.reasons(*gang(), single)
    assert said == [missing] * 3 + ["waits for a node: 1 GPU asked for"]
    await cluster.reasons()
    await cluster.reasons()
    assert cluster.controller.recheck_seconds is None


@pytest.mark.parametrize("path", [PATH, TEMPLATES_PATH])
async def test_rejected_provisioning_request_is_reported_and_leaves_no_object(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    create: Callable[..., Any] = cluster.api.create

    async def refuse(where: str, body: Any) -> Any:
        if where == path:
            raise api_errors.Forbidden("exceeded quota: gpushare-demand")
        return await create(where, body)

    monkeypatch.setattr(cluster.api, "create", refuse)
    assert await cluster.reasons(*gang()) == ["asks for no nodes: exceeded quota: gpushare-demand"] * 3
    assert requests(cluster) == []


async def test_a_missing_right_stops_gangs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    list_: Callable[..., Any] = cluster.api.list

    async def refuse(path: str, **more: Any) -> Any:
        if path == PATH:
            raise api_errors.Forbidden("cannot list provisioningrequests")
        return await list_(path, **more)

    monkeypatch.setattr(cluster.api, "list", refuse)
    said = await cluster.reasons(*gang(), gated("single", gpus="1"))
    assert said == ["asks for no nodes: cannot list provisioningrequests"] * 3 + ["waits for a node: 1 GPU asked for"]


async def test_the_next_placer_continues_with_a_request() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    before = requests(cluster)
    answer(cluster, "Accepted")
    cluster.controller.elected()
    assert await cluster.reasons(*gang()) == [TOGETHER] * 3
    assert requests(cluster) == before
    cluster.controller.elected()
    await cluster.reasons()
    assert requests(cluster) == []
