"""Rounds of the placer are cut short, and exclusive GPUs are bounded by namespace, on a ledger in memory."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract
from gpushare.placement import exclusive_gpus
from tests import builders
from tests.webhook.controllers.gated_pods.ledger_in_memory import Cluster
from webhook.controllers.gated_pods import fairness
from webhook.pods.stored_pod import Pod


def waiting(namespace: str) -> Pod:
    made = builders.pod("new", namespace=namespace, request="0.2")
    made["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    return Pod.from_manifest(made)


async def test_many_pods_of_one_namespace_do_not_delay_others() -> None:
    cluster = Cluster(builders.node(gpus=1))
    await cluster.arrive("there", request="0.5")
    for number in range(fairness.MAX_FAILED_TRIES + 10):
        cluster.create(f"many-{number}", request="0.6", memory=f"{number + 1}Gi")
    cluster.now += 1
    cluster.create("late", namespace="other", request="0.2")
    await cluster.step()
    assert cluster.order == ["there", "late"]
    later = [name for name, said in cluster.told.items() if "its turn comes soon" in said]
    assert len(cluster.told) == fairness.MAX_FAILED_TRIES + 10
    assert len(later) == 10
    assert cluster.scheduler.has_skipped
    await cluster.step()
    assert [name for name, said in cluster.told.items() if "its turn comes soon" in said] == []


async def test_skipped_pod_keeps_its_reason() -> None:
    cluster = Cluster(builders.node(gpus=1))
    await cluster.arrive("there", request="0.5")
    for number in range(fairness.MAX_FAILED_TRIES + 10):
        cluster.create(f"many-{number}", request="0.6", memory=f"{number + 1}Gi")
        cluster.pods[f"many-{number}"]["metadata"]["annotations"][contract.REASON] = f"as before, {number}"
    await cluster.step()
    assert sum(said.startswith("as before") for said in cluster.told.values()) == 10


async def test_round_is_cut_short_for_a_pod_of_a_new_namespace() -> None:
    cluster = Cluster(builders.node(gpus=1))
    await cluster.arrive("there", request="0.5")
    for number in range(6):
        cluster.create(f"many-{number}", request="0.6", memory=f"{number + 1}Gi")
        cluster.create(f"other-{number}", namespace="other", request="0.7", memory=f"{number + 1}Gi")
    tried: list[str] = []
    place = cluster.store.chooser.place

    def reporter(manifest: dict[str, Any], *arguments: Any, **more: Any) -> Any:
        tried.append(manifest["metadata"]["name"])
        if len(tried) == 1:
            cluster.scheduler.pod_created(waiting("default"))  # no effect for a namespace that has a turn
        if len(tried) == 2:
            cluster.scheduler.pod_created(waiting("new"))
        return place(manifest, *arguments, **more)

    cluster.store.chooser.place = reporter  # type: ignore[method-assign]
    await cluster.step()
    assert sorted(tried) == ["many-0", "other-0"]  # each namespace has had a turn
    assert len(cluster.told) == 12
    assert cluster.scheduler.has_skipped
    cluster.create("late", namespace="new", request="0.2")
    await cluster.step()
    assert cluster.order == ["there", "late"]
    assert len(set(tried)) == 13
    assert not cluster.scheduler.has_skipped


def one_gpu(namespace: str) -> exclusive_gpus.ExclusiveBound:
    return exclusive_gpus.ExclusiveBound(namespace, "gpus", 100)


async def test_a_pod_beyond_the_bound_on_exclusive_gpus_waits_without_holding_one() -> None:
    patient = fairness.OvertakeLimits(patience_seconds=60, max_overtakes=1)
    cluster = Cluster(builders.node(gpus=2), limits=patient, exclusive=one_gpu)
    await cluster.arrive("first", request="0.5", exclusion="red")
    cluster.now += 1
    cluster.create("second", request="0.5", exclusion="blue")
    await cluster.step()
    cluster.now += 1
    await cluster.arrive("plain", request="0.5")
    cluster.now += 61
    await cluster.step()
    assert cluster.waiting() == ["second"]
    assert cluster.held() == {}
    assert 'gpushare.io/exclusion "blue" asks for 1 exclusive GPU' in cluster.told["second"]
    await cluster.end("first")
    await cluster.step()
    assert cluster.waiting() == []


@pytest.mark.parametrize(("percent", "held"), [(100, 0), (200, 1)])
async def test_backfill_reservation_respects_the_bound_on_exclusive_gpus(percent: int, held: int) -> None:
    cluster = Cluster(
        builders.node(gpus=2),
        limits=fairness.OvertakeLimits(patience_seconds=60, max_overtakes=1),
        exclusive=lambda namespace: exclusive_gpus.ExclusiveBound(namespace, "gpus", percent),
    )
    await cluster.arrive("first", request="1", exclusion="red")
    await cluster.arrive("plain", request="0.5")
    cluster.now += 1
    cluster.create("second", request="1", exclusion="red")
    await cluster.step()
    cluster.now += 1
    await cluster.arrive("passer", request="0.5")
    cluster.now += 61
    await cluster.step()
    assert len(cluster.held()) == held


async def test_refusal_is_not_reused_for_a_pod_of_another_namespace() -> None:
    bounds = {"default": exclusive_gpus.ExclusiveBound("default", "gpus", 0)}
    cluster = Cluster(builders.node(gpus=1), exclusive=bounds.get)
    cluster.create("ours", request="0.1", exclusion="red")
    cluster.now += 1
    cluster.create("theirs", request="0.1", exclusion="red")
    cluster.pods["theirs"]["metadata"]["namespace"] = "another"
    await cluster.step()
    assert cluster.order == ["theirs"]


async def test_a_gang_beyond_the_bound_is_not_placed_in_part() -> None:
    cluster = Cluster(builders.node(gpus=4), exclusive=one_gpu)
    for name, label in (("a", "red"), ("b", "blue")):
        cluster.create(name, request="0.1", exclusion=label, group="training", group_size="2")
        cluster.now += 1
    await cluster.step()
    assert sorted(cluster.waiting()) == ["a", "b"]
    assert cluster.shares() == set()
    assert all("exclusion" in told for told in cluster.told.values())
