"""Gangs that ask for nodes by a ProvisioningRequest: one for each, followed as the autoscaler answers."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_errors
from gpushare.gpunode import GpuNode
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import GpuKind
from tests import builders
from tests.webhook.controllers.test_demand_controller import NOW, Cluster, excluded, full, gated
from webhook.controllers.demand import demand_controller, gang_demand, provisioning_requests
from webhook.controllers.demand.gang_demand import ATOMIC, VALID_SECONDS
from webhook.controllers.demand.provisioning_requests import PATH, RETRY_SECONDS, TEMPLATES_PATH
from webhook.store.reservation import Reservation

TOGETHER = "waits for nodes: 3 GPUs asked for together"


def cluster_with(*nodes: GpuNode, max_gpus: int = 16, kinds: tuple[GpuKind, ...] = ()) -> Cluster:
    made = Cluster(*nodes, max_gpus=max_gpus, kinds=kinds, provisioning_class=ATOMIC)
    made.api.collections |= {PATH: {}, TEMPLATES_PATH: {}}
    return made


def gang(size: int = 3, *, name: str = "g", **asks: Any) -> list[dict[str, Any]]:
    asks = {"gpus": "1", **asks}
    return [gated(f"{name}{number}", group=name, group_size=str(size), **asks) for number in range(size)]


def requests(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.api.collections[PATH].values())


def templates(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.api.collections[TEMPLATES_PATH].values())


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
    (container,) = template["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"gpushare.io/gpu-percent": "100"}
    (pod,) = cluster.api.pods.values()
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"gpushare.io/gpu-percent": "200"}
    await cluster.reasons(*gang(), single)
    assert requests(cluster) == [one]
    await cluster.reasons(single)
    await cluster.reasons(single)
    assert requests(cluster) == templates(cluster) == []


async def test_members_that_would_fit_say_what_the_gang_waits_for() -> None:
    cluster = cluster_with(builders.node("node-a", gpus=1))
    assert await cluster.reasons(*gang()) == ["waits for nodes: 2 GPUs asked for together"] * 3


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
    assert await cluster.reasons(*gang()) == ["asks for no nodes: the autoscaler gave up: R"] * 3
    assert requests(cluster) == []
    cluster.now += RETRY_SECONDS
    assert await cluster.reasons(*gang()) == [TOGETHER] * 3


@pytest.mark.parametrize(
    ("conditions", "seconds", "why"),
    [
        ([], gang_demand.UNANSWERED_SECONDS, "no autoscaler accepted the ProvisioningRequest gpushare-"),
        (["Accepted"], VALID_SECONDS, "the autoscaler found no nodes within 15 minutes: R: later"),
        (["Accepted", "Provisioned"], VALID_SECONDS, "the nodes that the autoscaler provisioned were of no use within"),
    ],
)
async def test_nodes_that_never_come_are_left_to_pods_ahead(conditions: list[str], seconds: float, why: str) -> None:
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=4)
    await cluster.reasons(*gang(4))
    answer(cluster, "Provisioned", status="False", message="later")
    for kind in conditions:
        answer(cluster, kind)
    single = gated("single", gpus="2", created=seconds)
    cluster.now += seconds - 1
    assert (await cluster.reasons(single, *gang(4)))[0].startswith("asks for no node: no more than 4 GPUs")
    cluster.now += 1
    said = await cluster.reasons(single, *gang(4))
    assert said[1].startswith(f"asks for no nodes: {why}")
    assert (await cluster.reasons(single, *gang(4))) == ["waits for a node: 2 GPUs asked for", *said[1:]]
    assert requests(cluster) == []
    cluster.now += RETRY_SECONDS
    assert (await cluster.reasons(*gang(4)))[0] == "waits for nodes: 4 GPUs asked for together"


async def test_a_failure_is_the_reason_of_the_gangs_pods_until_the_next_try() -> None:
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=3)
    await cluster.reasons(*gang())
    answer(cluster, "Failed", reason="CapacityIsNotFound", message="node group pool is at its limit")
    failed = "asks for no nodes: the autoscaler gave up: CapacityIsNotFound: node group pool is at its limit"
    assert await cluster.reasons(*gang()) == [failed] * 3
    assert requests(cluster) == []
    # It takes nothing from the bound meanwhile, and a smaller gang may try.
    others = [gated(f"s{number}", gpus="1") for number in range(3)]
    assert await cluster.reasons(*gang(), *others) == [failed] * 3 + ["waits for a node: 3 GPUs asked for"] * 3
    assert await cluster.reasons(*gang(2)) == ["waits for nodes: 2 GPUs asked for together"] * 2
    await cluster.reasons()
    cluster.now += RETRY_SECONDS
    assert await cluster.reasons(*gang()) == [TOGETHER] * 3


async def test_a_request_stays_while_it_asks_for_enough() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang()[1:])
    before = requests(cluster)
    # Members that fit for a moment change nothing.
    for members in (gang(), gang()[1:], gang()):
        assert (await cluster.reasons(*members))[0].startswith("waits for nodes: 2 GPUs asked for together")
        assert requests(cluster) == before
    cluster.now += provisioning_requests.REPLACE_SECONDS
    await cluster.reasons(*gang()[1:])
    assert requests(cluster) == before
    await cluster.reasons(*gang())
    assert await cluster.reasons(*gang()) == [TOGETHER] * 3


@pytest.mark.parametrize("label", ["x-5", "x-", "x-5-", "x--5", "x-5-y", "x-²-5"])
async def test_a_label_that_another_client_has_changed_stops_no_round(label: str) -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    (template,) = templates(cluster)
    template["metadata"]["labels"][contract.DEMAND_LABEL] = label
    cluster.now += provisioning_requests.REPLACE_SECONDS
    assert (await cluster.reasons(*gang()))[0].startswith(TOGETHER)
    assert requests(cluster) == []  # it asks again


async def test_gang_asks_for_all_its_gpus_or_none_within_the_maximum() -> None:
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=4)
    bound = "asks for no nodes: no more than 4 GPUs are asked for (--demand-max-gpus)"
    single = gated("single", gpus="2")
    # Pods ahead of the gang come first; pods behind it get what it leaves.
    assert await cluster.reasons(single, *gang()) == ["waits for a node: 2 GPUs asked for"] + [bound] * 3
    behind = "asks for no node: no more than 4 GPUs are asked for (--demand-max-gpus)"
    assert await cluster.reasons(*gang(), single) == [TOGETHER] * 3 + [behind]
    assert set(await cluster.reasons(*gang(5, name="large"))) == {f"{bound}, and the gang needs more"}


async def test_requests_that_exist_count_towards_the_bound_until_they_are_deleted() -> None:
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=4)
    first, second = gang(4), gang(4, name="h")
    await cluster.reasons(*first, *second)
    for _ in range(8):
        cluster.now += 61
        await cluster.reasons(*first, *second)
        assert len(requests(cluster)) <= 1
    assert await cluster.reasons(*first, *second) != ["waits for nodes: 4 GPUs asked for together"] * 8


async def test_gangs_that_failed_come_last() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    hopeless = [pod for number in range(4) for pod in gang(2, name=f"g{number}x")]
    await cluster.reasons(*hopeless)
    for one in requests(cluster):
        one["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    await cluster.reasons(*hopeless, *gang())
    cluster.now += RETRY_SECONDS
    said = await cluster.reasons(*hopeless, *gang())
    assert said[-3:] == [TOGETHER] * 3
    assert said[:2] == ["waits for nodes: 2 GPUs asked for together"] * 2


async def test_a_gang_with_a_pod_that_no_node_would_help_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    cluster.api.template["spec"]["nodeSelector"] = {"pool": "a"}
    members = gang()
    members[0]["spec"]["nodeSelector"] = {"pool": "b"}
    said = await cluster.reasons(*members, *gang(name="h"))
    assert said[0].startswith("asks for no node: its nodeSelector pool=b conflicts with")
    stuck = "asks for no nodes: another node would not help one of the pods of its gang"
    assert said[1:] == [stuck] * 2 + [TOGETHER] * 3
    monkeypatch.setattr(demand_controller, "MAX_PODS", 4)
    said = await cluster.reasons(*gang(name="h"), *gang(name="i"))
    assert said[3] == "asks for no nodes: others of its gang wait for a borrowed GPU, or too many pods wait"
    assert len(requests(cluster)) == 1


async def test_pods_join_an_elastic_gang_once_the_nodes_of_its_minimum_start() -> None:
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=4)
    members = [gated(f"e{number}", group="e", group_size="2-20", gpus="1") for number in range(5)]
    joins = "asks for no node until the nodes of its gang's minimum, 2 pods, are provisioned"
    for condition in ("Accepted", "Provisioned"):
        said = await cluster.reasons(*members)
        assert said[0].startswith("waits for nodes: 2 GPUs asked for together")
        assert said[2:] == [joins] * 3
        answer(cluster, condition)
    await cluster.reasons(*members)
    said = await cluster.reasons(*members)
    assert said[:2] == ["waits for nodes: 2 GPUs provisioned"] * 2
    assert said[2:4] == ["waits for a node: 2 GPUs asked for"] * 2
    assert said[4].startswith("asks for no node: no more than 4 GPUs")
    assert len(cluster.api.pods) == 2
    answer(cluster, "Failed")
    await cluster.reasons(*members)
    failed = "asks for no nodes: the autoscaler gave up: R"
    assert await cluster.reasons(*members) == [failed] * 5
    assert cluster.api.pods == {}


@pytest.mark.parametrize(
    ("max_gpus", "has_crd", "why"),
    [(16, False, "the cluster has no ProvisioningRequest"), (1, True, "no more than 1 GPUs are asked for")],
)
async def test_pods_that_would_join_a_gang_that_asks_for_nothing_say_so_too(
    max_gpus: int, has_crd: bool, why: str
) -> None:
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=max_gpus)
    if not has_crd:
        del cluster.api.collections[PATH]
    members = [gated(f"e{number}", group="e", group_size="2-4", gpus="1") for number in range(3)]
    (said,) = set(await cluster.reasons(*members))
    assert said.startswith(f"asks for no nodes: {why}")


async def test_four_gangs_ask_for_nodes_at_a_time() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    several = [pod for number in range(5) for pod in gang(2, name=f"g{number}x")]
    said = await cluster.reasons(*several)
    assert said[-2:] == ["asks for no nodes: no more than 4 gangs ask for nodes at a time"] * 2
    assert len(requests(cluster)) == 4


async def test_a_request_has_no_more_pod_sets_than_its_crd_allows() -> None:
    """Of a gang whose pods all differ."""
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=64)
    most = gang_demand.MAX_POD_SETS
    too_many = f"it needs more than {most} kinds of nodes, and a ProvisioningRequest has no more"
    for size, end in ((most, f"waits for nodes: {most} GPUs asked for together"), (most + 1, too_many)):
        members = [gang(size, name=f"of{size}x", cpu=f"{1000 + number}m")[number] for number in range(size)]
        assert {said.removeprefix("asks for no nodes: ") for said in await cluster.reasons(*members)} == {end}
        assert [len(one["spec"]["podSets"]) for one in requests(cluster)] == [size] * (size <= most)


async def test_a_cluster_without_the_crd_says_so() -> None:
    cluster = Cluster(full("node-a"), provisioning_class=ATOMIC)
    missing = (
        "asks for no nodes: the cluster has no ProvisioningRequest (autoscaling.x-k8s.io/v1): install the CRD of "
        "Cluster Autoscaler 1.31.1 or later, or remove --demand-provisioning-class"
    )
    single = gated("single", gpus="1")
    said = await cluster.reasons(*gang(), single)
    assert said == [missing] * 3 + ["waits for a node: 1 GPU asked for"]
    await cluster.reasons()
    await cluster.reasons()
    assert cluster.controller.recheck_seconds is None


@pytest.mark.parametrize("path", [PATH, TEMPLATES_PATH])
async def test_rejected_provisioning_request_is_reported_tried_less_often_and_leaves_no_object(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    create: Callable[..., Any] = cluster.api.create
    tried = []

    async def refuse(where: str, body: Any) -> Any:
        if where == path:
            tried.append(cluster.now)
            raise api_errors.Forbidden(f"{body['metadata']['name']} exceeded quota: gpushare-demand")
        return await create(where, body)

    monkeypatch.setattr(cluster.api, "create", refuse)
    said = set()
    while cluster.now < 71:
        said |= set(await cluster.reasons(*gang()))
        cluster.now += 5
    assert tried == [0, 10, 30, 70]
    (one,) = said
    assert one.startswith("asks for no nodes: ")
    assert one.endswith(" exceeded quota: gpushare-demand")
    assert requests(cluster) == []
    await cluster.reasons()
    await cluster.reasons()
    assert templates(cluster) == []
    assert cluster.controller.recheck_seconds is None


async def test_a_request_is_created_after_its_templates() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    made = []
    create: Callable[..., Any] = cluster.api.create

    async def watched(where: str, body: Any) -> Any:
        made.append(where)
        return await create(where, body)

    cluster.api.create = watched  # type: ignore[method-assign]
    # Gangs that are alike have the same template.
    await cluster.reasons(*gang(), *gang(name="h"))
    assert made == [TEMPLATES_PATH, PATH, TEMPLATES_PATH, PATH]
    assert len(templates(cluster)) == 1
    await cluster.reasons(*gang())
    await cluster.reasons(*gang())
    assert len(templates(cluster)) == len(requests(cluster)) == 1


@pytest.mark.parametrize("error", [api_errors.Forbidden, api_errors.Unavailable, api_errors.ClusterError])
@pytest.mark.parametrize("call", ["list", "create", "delete"])
async def test_a_failed_call_stops_gangs_only(
    call: str, error: type[api_errors.ClusterError], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    single = gated("single", gpus="1")
    if call == "delete":
        await cluster.reasons(*gang(name="former"), single)
    done: Callable[..., Any] = getattr(cluster.api, call)

    async def refuse(path: str, *args: Any, **more: Any) -> Any:
        if path.startswith(PATH):
            raise error("conversion webhook failed")
        return await done(path, *args, **more)

    monkeypatch.setattr(cluster.api, call, refuse)
    said = await cluster.reasons(*gang(), single)
    assert said == ["asks for no nodes: conversion webhook failed"] * 3 + ["waits for a node: 1 GPU asked for"]
    assert len(cluster.api.pods) == 1


async def test_gangs_are_tried_and_packed_only_when_that_may_change_something(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    packed = []
    pack = node_demand.pack

    def counted(waiting: Any, **more: Any) -> Any:
        packed.append(waiting)
        return pack(waiting, **more)

    monkeypatch.setattr(node_demand, "pack", counted)
    tried = []
    reserve: Callable[..., Any] = Reservation.reserve

    async def watched(self: Reservation, *args: Any) -> Any:
        tried.append(args)
        return await reserve(self, *args)

    monkeypatch.setattr(Reservation, "reserve", watched)
    several = [pod for number in range(9) for pod in gang(3, name=f"g{number}x")]
    await cluster.reasons(*several)
    assert len(tried) == 9  # the pods of a gang are alike
    assert sum(bool(pods) for pods in packed) == provisioning_requests.MAX_REQUESTS
    packed.clear()
    await cluster.reasons(*several)
    assert packed == []


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
