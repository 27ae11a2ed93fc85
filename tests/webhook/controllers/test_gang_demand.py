"""What a gang asks for next to other gangs and pods, and when its request is of no use any more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_errors
from gpushare.refusal import Cause, Refusal
from gpushare.whatif.node_demand import GpuKind
from tests.webhook.controllers.test_demand_controller import Cluster, full, gated
from tests.webhook.controllers.test_provisioning_requests import (
    TOGETHER,
    answer,
    cluster_with,
    gang,
    requests,
    templates,
)
from webhook.controllers.demand import demand_controller, demand_pods, provisioning_requests
from webhook.controllers.demand.gang_demand import VALID_SECONDS
from webhook.controllers.demand.provisioning_requests import PATH, RETRY_SECONDS
from webhook.pods.stored_pod import Pod

T4, L4, A100 = (GpuKind.named(*kind) for kind in (("T4", 16 << 30), ("L4", 24 << 30), ("A100", 80 << 30)))


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """With at most four GPUs, which no call may exceed."""
    cluster = cluster_with(full("node-a", gpus=8), max_gpus=4)
    create: Callable[..., Any] = cluster.api.create

    async def checked(where: str, body: Any) -> Any:
        made = await create(where, body)
        asked = sum(cluster.asked(contract.RESOURCE_PERCENT)) // 100
        assert asked + sum(int(one["metadata"]["labels"][contract.DEMAND_LABEL]) for one in requests(cluster)) <= 4
        return made

    monkeypatch.setattr(cluster.api, "create", checked)
    return cluster


async def test_a_pod_whose_node_never_comes_does_not_block_gangs(bounded: Cluster) -> None:
    typo = gated("typo", gpus="4", spec={"nodeSelector": {"pool": "typo"}})
    assert await bounded.reasons(typo) == ["waits for a node: 4 GPUs asked for"]
    bounded.now += demand_pods.LATE_SECONDS
    said = await bounded.reasons(typo, *gang(created=bounded.now))
    assert said[0].startswith("asks for no node: no more than 4 GPUs are asked for")
    assert said[1:] == [TOGETHER] * 3
    assert bounded.asked(contract.RESOURCE_PERCENT) == []


async def test_a_request_is_created_only_once_the_demand_pods_in_its_way_are_gone(
    bounded: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = gated("single", gpus="2")
    await bounded.reasons(single)
    delete: Callable[..., Any] = bounded.api.delete

    async def refuse(path: str, **_: Any) -> Any:
        raise api_errors.Unavailable(f"{path}: no connection")

    monkeypatch.setattr(bounded.api, "delete", refuse)
    said = await bounded.reasons(*gang(), single)
    assert all(one.startswith("asks for no node: /api/v1/") for one in said)
    assert requests(bounded) == []
    monkeypatch.setattr(bounded.api, "delete", delete)
    assert (await bounded.reasons(*gang(), single))[:3] == [TOGETHER] * 3


async def test_a_gang_that_failed_leaves_the_bound_to_pods_that_do_not_wait_too_long(bounded: Cluster) -> None:
    await bounded.reasons(*gang())
    answer(bounded, "Failed")
    singles = [gated(f"s{number}", gpus="1", created=1.0) for number in range(3)]
    waiting = [*gang(), *singles]
    await bounded.reasons(*waiting)
    bounded.now += RETRY_SECONDS
    for _ in range(3):
        said = await bounded.reasons(*waiting)
        assert said[0].startswith("asks for no nodes: no more than 4 GPUs")
        assert said[0].endswith("; other pods and gangs come first, as its last request failed")
        assert said[3:] == ["waits for a node: 3 GPUs asked for"] * 3
    bounded.now += demand_pods.LATE_SECONDS
    assert (await bounded.reasons(*waiting))[:3] == [TOGETHER] * 3


async def test_small_gangs_do_not_overtake_a_large_one_without_end(bounded: Cluster) -> None:
    small = [gang(2, name=f"s{number}x") for number in range(3)]
    large = gang(4, name="large")
    bound = "asks for no nodes: no more than 4 GPUs are asked for (--demand-max-gpus)"
    await bounded.reasons(*small[0])
    said = await bounded.reasons(*small[0], *large, *small[1])
    assert said[2:] == [bound] * 6
    await bounded.reasons(*large, *small[1], *small[2])  # the first one has its nodes
    said = await bounded.reasons(*large, *small[1], *small[2])
    assert said == ["waits for nodes: 4 GPUs asked for together"] * 4 + [bound] * 4


@pytest.mark.parametrize(
    ("before", "after"),
    [({"size": 4}, {"size": 2, "gpus": "2"}), ({"size": 2}, {"size": 2, "cpu": "8"}), ({"size": 2}, {"pool": "b"})],
    ids=["GPUs", "CPU", "pool"],
)
async def test_a_gang_that_is_created_again_with_other_pods_gets_another_request(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    def members(size: int = 2, pool: str = "a", **asks: Any) -> list[dict[str, Any]]:
        return gang(size, spec={"nodeSelector": {"pool": pool}}, **asks)

    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*members(**before))
    first = requests(cluster)
    for _ in range(2):
        await cluster.reasons(*members(**after))
        assert requests(cluster) == first
        cluster.now += provisioning_requests.REPLACE_SECONDS / 2
    await cluster.reasons(*members(**after))
    await cluster.reasons(*members(**after))
    (second,) = requests(cluster)
    assert [second] != first
    cluster.now += provisioning_requests.REPLACE_SECONDS
    await cluster.reasons(*members(**after))
    assert requests(cluster) == [second]


async def test_a_gang_whose_pods_no_node_group_serves_together_says_so() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    members = gang(2)
    for made, pool in zip(members, "ab", strict=True):
        made["spec"]["nodeSelector"] = {"pool": pool}
    said = await cluster.reasons(*members)
    both = "its pods select nodes with pool=a and with pool=b, and an autoscaler starts a gang's nodes from one group"
    assert said == [f"asks for no nodes: {both}"] * 2
    assert requests(cluster) == []


@pytest.mark.parametrize(
    ("sizes", "max_gpus", "product", "gpus"),
    [
        (["8Gi", "40Gi", "40Gi"], 16, "A100", 2),
        (["12Gi"] * 5, 2, "A100", 2),  # on smaller ones, it would need more than may be asked for
        (["8Gi", "20Gi", "12Gi"], 16, "A100", 1),  # of those that hold all, the fewest
        (["8Gi", "8Gi"], 16, "T4", 1),
    ],
)
async def test_a_gang_that_one_product_holds_asks_for_that(
    sizes: list[str], max_gpus: int, product: str, gpus: int
) -> None:
    cluster = cluster_with(full("node-a", gpus=8, memory_gib=8), max_gpus=max_gpus, kinds=(T4, L4, A100))
    members = [gang(len(sizes), memory=size, request="0.3")[number] for number, size in enumerate(sizes)]
    said = await cluster.reasons(*members)
    assert set(said) == {f"waits for nodes: {gpus} GPU{'s' * (gpus > 1)} asked for together"}
    selectors = [made["template"]["spec"]["nodeSelector"] for made in templates(cluster)]
    assert {made[demand_pods.PRODUCT_LABEL] for made in selectors} == {product}


async def test_a_gang_asks_for_nodes_that_are_large_enough_as_far_as_is_known() -> None:
    kinds = dataclasses.replace(A100, max_gpus=1), T4, L4
    cluster = cluster_with(full("node-a", gpus=8, memory_gib=4), kinds=kinds)
    members = gang(2, memory="8Gi", gpus="2", request="0.3")[:1] + gang(2, memory="20Gi", request="0.3")[1:]
    assert await cluster.reasons(*members) == [TOGETHER] * 2
    selectors = [made["template"]["spec"]["nodeSelector"] for made in templates(cluster)]
    assert [made[demand_pods.PRODUCT_LABEL] for made in selectors] == ["L4"] * 2


@pytest.mark.parametrize(
    ("models", "why"),
    [
        (("T4", "L4"), "no known product holds all its pods"),
        (("H100", "L4"), "it fits on no GPU that is known (--demand-products), even if that is empty"),
    ],
)
async def test_a_gang_that_no_product_holds_says_so(models: tuple[str, str], why: str) -> None:
    cluster = cluster_with(full("node-a", gpus=8, memory_gib=8), kinds=(T4, L4))
    members = [gang(2, model=model)[number] for number, model in enumerate(models)]
    (said,) = set(await cluster.reasons(*members))
    assert said.startswith(f"asks for no nodes: {why}")
    assert requests(cluster) == []


@pytest.mark.parametrize("skew", [-86400.0, 86400.0])
async def test_the_autoscalers_clock_may_be_wrong(skew: float) -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    cluster.now += skew
    answer(cluster, "Provisioned")
    cluster.now -= skew - VALID_SECONDS / 2
    assert await cluster.reasons(*gang()) == ["waits for nodes: 3 GPUs provisioned"] * 3
    cluster.now += 1.5 * VALID_SECONDS
    useless = "asks for no nodes: the nodes that the autoscaler provisioned were of no use within 15 minutes"
    assert await cluster.reasons(*gang()) == [useless] * 3
    assert requests(cluster) == []


async def test_pauses_do_not_depend_on_the_wall_clock() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    answer(cluster, "Failed")
    await cluster.reasons(*gang())
    cluster.stepped = -86400.0
    cluster.now += RETRY_SECONDS
    assert await cluster.reasons(*gang()) == [TOGETHER] * 3


async def test_a_request_that_was_read_before_its_templates_is_soon_made_again() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    answer(cluster, "Failed", reason="FailedToCreatePods", message="missing pod templates")
    assert "FailedToCreatePods" in (await cluster.reasons(*gang()))[0]
    cluster.now += provisioning_requests.REJECTED_SECONDS
    assert await cluster.reasons(*gang()) == [TOGETHER] * 3


async def test_templates_do_not_outlive_the_crd_and_are_deleted_once() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    await cluster.reasons(*gang())
    del cluster.api.collections[PATH]
    (template,) = templates(cluster)
    template["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await cluster.reasons()
    assert templates(cluster) == [template]  # another client's finalizer keeps it
    del template["metadata"]["deletionTimestamp"]
    await cluster.reasons()
    assert templates(cluster) == []
    await cluster.reasons()
    assert cluster.controller.recheck_seconds is None


async def test_the_next_placer_changes_nothing_before_it_has_tried_all_pods_but_not_without_end() -> None:
    cluster = cluster_with(full("node-a", gpus=8))
    waiting = [*gang(), gated("single", gpus="1")]
    await cluster.reasons(*waiting)
    before = requests(cluster), list(cluster.api.pods.values())
    cluster.controller.elected()
    untried = [(Pod.from_manifest(made), Refusal("x", cause=Cause.TURN)) for made in waiting]
    assert await cluster.controller.reconcile(untried) == untried
    assert (requests(cluster), list(cluster.api.pods.values())) == before
    cluster.now += demand_controller.UNTRIED_SECONDS
    await cluster.controller.reconcile(untried)
    assert (requests(cluster), list(cluster.api.pods.values())) == ([], [])
