"""The number of GPUs that the pods of a namespace reserve for themselves by an exclusion label."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract, ledger, resource_quota
from gpushare import request as requests
from gpushare.allocation import PodRef
from gpushare.placement import Placement, exclusive_gpus
from gpushare.refusal import Refusal
from gpushare.whatif.world import World
from tests import builders

PERCENT = f"requests.{contract.RESOURCE_PERCENT}"


def quota(percent: str, name: str = "gpus", **spec: Any) -> resource_quota.Allowance:
    document = {"metadata": {"name": name}, "spec": {"hard": {PERCENT: percent}, **spec}}
    allowance = resource_quota.read(document)
    assert allowance is not None
    return allowance


class Cluster:
    """A world in which the namespace `team` has a quota."""

    def __init__(self, percent: str, gpus: int = 8) -> None:
        self.world = World([builders.node(gpus=gpus)])
        self.world.bounds = {"team": exclusive_gpus.bound_of("team", [quota(percent)])}
        self.created = 0

    def create(self, label: str, *, namespace: str = "team", **asked: str) -> list[int] | str:
        """Place a pod; return the indexes of its GPUs, or why it has none."""
        self.created += 1
        manifest = builders.pod(f"p{self.created}", **({"request": "0.01", "memory": "1Mi"} | asked))
        manifest["metadata"]["namespace"] = namespace
        if label:
            manifest["metadata"]["annotations"][contract.EXCLUSION] = label
        request = requests.parse(manifest)
        outcome = self.world.place(manifest, request)
        if isinstance(outcome, Refusal):
            return str(outcome)
        assert isinstance(outcome, Placement)
        pod = PodRef(namespace, manifest["metadata"]["name"], f"u{self.created}")
        entry = outcome.allocation(request, allocation_id=f"a{self.created}", pod=pod, reserved_until=None)
        node = ledger.reserve(self.world.views[outcome.node].node, entry)
        self.world.put(type(self.world.views[outcome.node]).from_node(node))
        return sorted(gpu.index for gpu in node.gpus if gpu.uuid in entry.gpu_uuids)


def test_small_pods_with_distinct_labels_do_not_take_a_gpu_each() -> None:
    cluster = Cluster("200")
    outcomes = [cluster.create(f"label-{number}") for number in range(8)]
    assert [isinstance(outcome, list) for outcome in outcomes] == [True] * 2 + [False] * 6
    assert outcomes[2] == (
        'gpushare.io/exclusion "label-2" asks for 1 exclusive GPU, but the namespace team already has 2 of the 2 that its '
        "ResourceQuota gpus allows (requests.gpushare.io/gpu-percent is 200, and each exclusive GPU counts as 100): use "
        "a label that the namespace already has on a GPU with room, wait until such a pod ends, or raise the quota"
    )
    assert isinstance(cluster.create("", namespace="another"), list)
    assert isinstance(cluster.create(""), list)
    assert cluster.create("label-0") == outcomes[0]
    assert isinstance(cluster.create("label-0", request="1"), str)
    assert isinstance(cluster.create("own", namespace="another"), list)


def test_label_of_another_namespace_does_not_help() -> None:
    cluster = Cluster("100")
    assert isinstance(cluster.create("red", namespace="another", request="0.5"), list)
    mine = cluster.create("blue")
    assert isinstance(mine, list)
    assert "already has 1 of the 1 that" in str(cluster.create("red"))
    assert cluster.create("blue") == mine


def test_pod_may_join_gpus_and_take_new_ones_up_to_the_bound() -> None:
    cluster = Cluster("200", gpus=2)
    first = cluster.create("red")
    assert isinstance(first, list)
    assert cluster.create("red", gpus="2") == [0, 1]
    assert "asks for 3 exclusive GPUs, but the namespace team already has 0 of the 2" in str(
        Cluster("200").create("red", gpus="3")
    )


def test_pod_joins_only_gpus_that_its_uuids_allow() -> None:
    cluster = Cluster("100")
    mine = cluster.create("red")
    assert isinstance(mine, list)
    gpus = cluster.world.views["node-a"].node.gpus
    other = next(gpu.uuid for gpu in gpus if gpu.index not in mine)
    assert isinstance(cluster.create("red", uuid=other), str)
    assert cluster.create("red", uuid=f"{other},{gpus[mine[0]].uuid}") == mine


@pytest.mark.parametrize(
    ("percents", "most"), [(["0"], 0), (["1"], 1), (["199"], 1), (["200"], 2), (["300", "100"], 1), ([], None)]
)
def test_lowest_quota_is_the_bound(percents: list[str], most: int | None) -> None:
    bound = exclusive_gpus.bound_of("team", [quota(percent, f"q{percent}") for percent in percents])
    assert (bound and bound.most_gpus) == most


def test_quota_without_compute_is_no_bound() -> None:
    allowance = resource_quota.read({"metadata": {"name": "cpu"}, "spec": {"hard": {"requests.cpu": "1"}}})
    assert allowance is not None
    assert exclusive_gpus.bound_of("team", [allowance]) is None
