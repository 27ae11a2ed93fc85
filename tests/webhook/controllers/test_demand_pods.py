"""Which demand pods are created and deleted, and what they ask for."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract
from gpushare.nodefilters import NodeSpec, PodAffinity, PodKey, SchedulerCache
from gpushare.whatif.node_demand import NodeDemand
from tests import builders
from tests.config import manifests
from webhook.controllers.demand import demand_pods
from webhook.controllers.demand.demand_pods import DemandPod

TEMPLATE = next(
    made["template"]
    for made in yaml.safe_load_all((manifests.CONFIG / "components/demand/template.yaml").read_text())
    if made["kind"] == "PodTemplate"
)
DEMAND = NodeDemand("{}", "", 1, 1500, 2**30, ("uid",))
DEMANDS = st.lists(
    st.builds(
        NodeDemand,
        selection=st.sampled_from(["{}", '{"nodeSelector": {"pool": "a"}}']),
        product=st.sampled_from(["", "NVIDIA-L4"]),
        gpus=st.integers(1, 2),
        cpu_milli=st.integers(0, 3),
        memory_bytes=st.integers(0, 3),
        uids=st.just(("uid",)),
    ),
    max_size=6,
)


def made(demand: NodeDemand, name: str = "one", **spec: Any) -> dict[str, Any]:
    manifest = demand_pods.manifest(TEMPLATE, demand, resource=contract.RESOURCE_PERCENT, excluded=())
    manifest["metadata"] |= {"name": name, "uid": name}
    manifest["spec"] |= spec
    return manifest


@given(DEMANDS, DEMANDS, st.lists(st.sampled_from(["open", "bound", "leaves"]), min_size=6, max_size=6))
def test_law_after_the_plan_there_is_one_pod_for_each_demand(
    before: list[NodeDemand], wanted: list[NodeDemand], states: list[str]
) -> None:
    pods = [DemandPod.from_manifest(made(demand, f"pod-{number}")) for number, demand in enumerate(before)]
    pods = [
        dataclasses.replace(one, is_done=state == "bound", leaves=state == "leaves")
        for one, state in zip(pods, states, strict=False)
    ]
    plan = demand_pods.plan(pods, wanted)
    assert all(not one.leaves for one in plan.delete)
    assert {one.name for one in pods if one.is_done} <= {one.name for one in plan.delete}
    kept = [one for one in pods if one not in plan.delete and not one.leaves]
    done = [one for one in pods if one.is_done or one.leaves]
    for key in {demand_pods.key_of(demand) for demand in (*before, *wanted)}:
        there = sum(one.key == key for one in kept) + sum(demand_pods.key_of(each) == key for each in plan.create)
        asked = sum(demand_pods.key_of(each) == key for each in wanted)
        # A pod that was bound or is being deleted still counts, so that no autoscaler starts a node twice.
        assert there == max(0, asked - sum(one.key == key for one in done))


@given(DEMANDS)
def test_law_pods_of_the_same_packing_stay(demands: list[NodeDemand]) -> None:
    pods = [DemandPod.from_manifest(made(demand, f"pod-{number}")) for number, demand in enumerate(demands)]
    assert demand_pods.plan(pods, demands) == demand_pods.Plan((), ())
    less = [dataclasses.replace(demand, cpu_milli=0, memory_bytes=0) for demand in demands]
    assert demand_pods.plan(pods, less) == demand_pods.Plan((), ())


def test_a_pod_that_needs_more_cpu_replaces_the_demand_pod() -> None:
    one = DemandPod.from_manifest(made(DEMAND))
    more = dataclasses.replace(DEMAND, cpu_milli=1501)
    assert demand_pods.plan([one], [more]) == demand_pods.Plan((one,), (more,))


def test_a_demand_pod_has_selection_amounts_and_no_rights() -> None:
    waiting = builders.pod(
        spec={
            "nodeSelector": {"pool": "a"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
                            for zone in ("z1", "z2")
                        ]
                    }
                },
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
            },
        }
    )
    demand = NodeDemand(demand_pods.selection_of(waiting), "NVIDIA-L4", 2, 1500, 2**30, ("uid",))
    manifest = demand_pods.manifest(
        TEMPLATE, demand, resource=contract.RESOURCE_PERCENT, excluded=["b", "a-z1-a-NVIDIA-L4"]
    )
    (container,) = manifest["spec"]["containers"]
    assert container["resources"]["requests"] == {
        contract.RESOURCE_PERCENT: "200", "cpu": "1500m", "memory": str(2**30)
    }  # fmt: skip
    assert container["resources"]["limits"] == {contract.RESOURCE_PERCENT: "200"}
    assert manifest["spec"]["automountServiceAccountToken"] is False
    whole = demand_pods.manifest(TEMPLATE, demand, resource="nvidia.com/gpu", excluded=[])
    assert whole["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    # The scheduler's rules: it fits the nodes that the waiting pod selects, except the excluded ones.
    cache = SchedulerCache()
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "10", contract.RESOURCE_PERCENT: "800"}
    for name, zone, pool, product in itertools.product("ac", ("z1", "z3"), ("a", "b"), ("NVIDIA-L4", "NVIDIA-A100")):
        named = f"{name}-{zone}-{pool}-{product}"
        labels = {"zone": zone, "pool": pool, demand_pods.PRODUCT_LABEL: product}
        node = {
            "metadata": {"name": named, "labels": {**labels, contract.HOSTNAME_LABEL: named}},
            "spec": {"taints": [{"key": "team", "value": "red", "effect": "NoSchedule"}]},
            "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        cache.put_node_spec(named, NodeSpec.from_manifest(node))
    node_filter = cache.node_filter(PodKey.from_manifest(manifest), PodAffinity.from_manifest(manifest))
    assert [spec.name for spec in cache.node_specs() if node_filter.fits(spec.name)] == ["c-z1-a-NVIDIA-L4"]
