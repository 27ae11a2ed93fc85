"""Filter results are cached until a change of nodes, pods or storage affects them."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract
from gpushare.nodefilters import NodeSpec, PodAffinity, PodInfo, PodKey, SchedulerCache, selectors, volumes
from gpushare.nodefilters.scheduler_cache import NO_NODE
from tests import builders

FULL = "has 0 of 1 CPUs free, 1 is requested"


def node_spec(name: str = "node-a", cpu: str = "1", **labels: str) -> NodeSpec:
    return NodeSpec.from_manifest(
        {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": cpu, "pods": "110"},
            },
        }
    )


def pod(cpu: str = "1", *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    made = builders.pod(labels=labels or {}, spec=spec)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


def verdict(cache: SchedulerCache, manifest: dict[str, Any], node: str = "node-a", itself: Any = None) -> str | None:
    return cache.node_filter(PodKey.from_manifest(manifest), PodAffinity.from_manifest(manifest), itself=itself)(node)


def cache(*specs: NodeSpec) -> SchedulerCache:
    made = SchedulerCache()
    for spec in specs or (node_spec(),):
        made.put_node_spec(spec.name, spec)
    return made


def terms(kind: str, key: str = "kubernetes.io/hostname", **more: Any) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "a"}}, **more}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


A = {"app": "a"}
OWN = (contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY, contract.RESOURCE_IDLE)


def test_filter_result_follows_pods_and_nodes() -> None:
    there = cache()
    assert verdict(there, pod()) is None
    assert there.put("one", PodInfo.from_manifest(pod(), "node-a"))
    assert verdict(there, pod()) == FULL
    assert not there.put("one", PodInfo.from_manifest(pod(), "node-a"))
    there.put("one", PodInfo.from_manifest(pod("0"), "node-a"))
    assert verdict(there, pod()) is None
    there.put_node_spec("node-a", node_spec(cpu="0"))
    assert verdict(there, pod()) == "has 0 CPUs in total, 1 is requested"
    there.put_node_spec("node-a", None)
    assert verdict(there, pod()) == NO_NODE


def test_pod_does_not_block_itself() -> None:
    there = cache()
    there.put("one", PodInfo.from_manifest(pod(labels=A, **terms("podAntiAffinity")), "node-a"))
    again = pod(labels=A, **terms("podAntiAffinity"))
    assert verdict(there, again) == FULL
    assert verdict(there, again, itself="one") is None
    assert verdict(there, again, itself="another") == FULL


def test_own_resources_are_checked_only_if_the_ledger_has_room() -> None:
    full = False
    there = SchedulerCache(
        is_full=lambda node, amounts: full and (node, amounts) == ("node-a", (("gpushare.io/gpu-percent", 50),))
    )
    there.put_node_spec("node-a", node_spec())
    asked = pod("0")
    asked["spec"]["containers"][0]["resources"] = {"requests": {"gpushare.io/gpu-percent": "50"}}
    assert verdict(there, asked) == "has free GPUs but no running agent: its kubelet offers no gpushare.io/gpu-percent"
    full = True
    there.forget("node-a")
    assert verdict(there, asked) is None


def test_pod_can_be_added_before_its_node() -> None:
    there = SchedulerCache()
    there.put("one", PodInfo.from_manifest(pod(), "node-a"))
    assert verdict(there, pod()) == NO_NODE
    there.put_node_spec("node-a", node_spec())
    assert verdict(there, pod()) == FULL


def test_anti_affinity_works_in_both_directions() -> None:
    for first, second in ((terms("podAntiAffinity"), {}), ({}, terms("podAntiAffinity"))):
        there = cache(node_spec(), node_spec("node-b"))
        there.put("one", PodInfo.from_manifest(pod("0", labels=A, **first), "node-a"))
        assert "keeps" in str(verdict(there, pod("0", labels=A, **second)))
        assert verdict(there, pod("0", labels=A, **second), "node-b") is None
        there.put("one", None)
        assert verdict(there, pod("0", labels=A, **second)) is None


def test_namespace_selectors_get_the_stricter_interpretation() -> None:
    there = cache()
    foreign = pod("0", labels=A)
    foreign["metadata"]["namespace"] = "other"
    there.put("one", PodInfo.from_manifest(foreign, "node-a"))
    some = {"namespaceSelector": {"matchLabels": {"team": "red"}}}
    assert verdict(there, pod("0", **terms("podAntiAffinity"))) is None
    assert verdict(there, pod("0", **terms("podAntiAffinity", **some))) is not None
    assert verdict(there, pod("0", **terms("podAntiAffinity", namespaceSelector={}))) is not None
    assert verdict(there, pod("0", **terms("podAffinity", **some))) is not None
    assert verdict(there, pod("0", **terms("podAffinity", namespaceSelector={}))) is None


def test_pods_with_affinity_start_anywhere_and_then_stay_together() -> None:
    there = cache(node_spec(zone="z1"), node_spec("node-b", zone="z1"), node_spec("node-c", zone="z2"))
    together = pod("0", labels=A, **terms("podAffinity", "zone"))
    assert [verdict(there, together, node) for node in ("node-a", "node-b", "node-c")] == [None, None, None]
    there.put("one", PodInfo.from_manifest(together, "node-a"))
    none = "has no pod in its zone that the pod's affinity requires"
    assert [verdict(there, together, node) for node in ("node-a", "node-b", "node-c")] == [None, None, none]
    other = pod("0", labels={"app": "b"}, **terms("podAffinity", "rack"))
    assert verdict(there, other) == "has no label rack, the topology key of the pod's affinity"


def spread(**more: Any) -> dict[str, Any]:
    rule = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": A},
    }
    return pod("0", labels=A, topologySpreadConstraints=[{**rule, **more}])


def test_spread_is_checked_as_if_the_pod_were_not_pinned() -> None:
    there = cache(node_spec(zone="z1"), node_spec("node-b", zone="z2"), node_spec("node-c"))
    there.put("one", PodInfo.from_manifest(pod("0", labels=A), "node-a"))
    assert verdict(there, spread()) == (
        "is in zone=z1, where one more pod would make the skew 2; the spread constraint allows 1"
    )
    assert verdict(there, spread(maxSkew=2)) is None
    assert verdict(there, spread(whenUnsatisfiable="ScheduleAnyway")) is None
    assert verdict(there, spread(), "node-b") is None
    assert verdict(there, spread(), "node-c") == "has no label zone, the topology key of the pod's spread constraint"


def test_min_domains_are_checked_as_if_pinned() -> None:
    there = cache(node_spec(zone="z1"), node_spec("node-b", zone="z2"))
    there.put("one", PodInfo.from_manifest(pod("0", labels=A), "node-a"))
    there.put("two", PodInfo.from_manifest(pod("0", labels=A), "node-b"))
    assert verdict(there, spread()) is None
    assert verdict(there, spread(minDomains=2)) is not None
    assert verdict(there, spread(minDomains=2, nodeAffinityPolicy="Ignore")) is None


def test_volume_is_reachable_from_some_nodes() -> None:
    there = cache(node_spec(zone="z1"), node_spec("node-b", zone="z2"))
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z2"]}]}
    disk = volumes.Disk(("default", "data"), selectors.of_nodes({"nodeSelectorTerms": [zone]}), None)
    there.put_storage(("", "disk"), None, disk)
    with_data = pod("0", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    assert verdict(there, with_data) == "cannot reach the volume of the pod's claim data"
    assert verdict(there, with_data, "node-b") is None
    there.put_storage(("", "disk"), disk, None)
    assert verdict(there, with_data) is None


def volume(name: str, zone: str, phase: str = "Bound") -> tuple[volumes.Name, volumes.StorageObject]:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    spec = {
        "claimRef": {"namespace": "default", "name": "data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    item = {"kind": volumes.VOLUME, "metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}
    return ("", name), volumes.read(item)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("phase", ["Released", "Available"])
def test_bound_volume_wins_over_one_that_only_names_the_claim(phase: str, is_first: bool) -> None:
    there = cache(node_spec(zone="z1"), node_spec("node-b", zone="z2"))
    claim = volumes.read({"kind": volumes.CLAIM, "metadata": {}, "spec": {"volumeName": "new"}})
    there.put_storage(("default", "data"), None, claim)
    names = [volume("old", "z1", phase), volume("new", "z2")]
    for name, disk in names if is_first else reversed(names):
        there.put_storage(name, None, disk)
    with_data = pod("0", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    assert verdict(there, with_data) == "cannot reach the volume of the pod's claim data"
    assert verdict(there, with_data, "node-b") is None
    name, old = names[0]
    there.put_storage(name, old, None)
    assert verdict(there, with_data) == "cannot reach the volume of the pod's claim data"


def test_unbound_claim_gets_the_volume_reserved_for_it() -> None:
    there = cache(node_spec(zone="z1"), node_spec("node-b", zone="z2"))
    there.put_storage(("default", "data"), None, volumes.read({"kind": volumes.CLAIM, "metadata": {}, "spec": {}}))
    with_data = pod("0", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    for phase, said in (("Available", "cannot reach the volume of the pod's claim data"), ("Released", None)):
        name, disk = volume("kept", "z2", phase)
        there.put_storage(name, None, disk)
        assert verdict(there, with_data) == said
        there.put_storage(name, disk, None)
        assert verdict(there, with_data) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pod-1", "pod-2", "pod-3"]),
        st.sampled_from([None, "node-a", "node-b"]),
        st.sampled_from(["0", "500m", "1"]),
    ),
    max_size=12,
)


@pytest.mark.slow
@given(STEPS)
def test_cached_results_equal_fresh_ones(steps: list[tuple[str, str | None, str]]) -> None:
    kept = cache(node_spec(), node_spec("node-b", cpu="2"))
    living: dict[str, PodInfo] = {}
    for name, node, cpu in steps:
        living.pop(name, None)
        if node is not None:
            living[name] = PodInfo.from_manifest(pod(cpu), node)
        kept.put(name, living.get(name))
        fresh = cache(node_spec(), node_spec("node-b", cpu="2"))
        for key, pod_info in living.items():
            fresh.put(key, pod_info)
        for where in ("node-a", "node-b", "node-c"):
            for asked in ("500m", "1"):
                assert verdict(kept, pod(asked), where) == verdict(fresh, pod(asked), where)


def test_nodes_with_the_same_hostname_take_no_pod_with_a_share() -> None:
    there = cache(node_spec(), node_spec("node-b"))
    asks = pod()
    asks["spec"]["containers"][0]["resources"]["requests"][contract.RESOURCE_IDLE] = "1"
    there.put_node_spec("node-b", node_spec("node-b", **{contract.HOSTNAME_LABEL: "node-a"}))
    for name, other in (("node-a", "node-b"), ("node-b", "node-a")):
        said = f"has the same label kubernetes.io/hostname as {other}, so a pod can be pinned to neither"
        assert verdict(there, asks, name) == said
        assert verdict(there, pod(), name) is None
    there.put_node_spec("node-b", node_spec("node-b"))
    assert (verdict(there, asks) or "").startswith("has free GPUs but no running agent")


def storage(kind: str, name: str, **fields: Any) -> tuple[volumes.Name, volumes.StorageObject | None]:
    namespace = "default" if kind == volumes.CLAIM else ""
    return (namespace, name), volumes.read({"kind": kind, "metadata": {"name": name}, **fields})


def local_class(name: str = "local", **fields: Any) -> tuple[volumes.Name, volumes.StorageObject | None]:
    made = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer", **fields}
    return storage(volumes.CLASS, name, **made)


def unbound(storage_class: str = "local", size: str = "1Ti") -> tuple[volumes.Name, volumes.StorageObject | None]:
    spec = {"storageClassName": storage_class, "accessModes": ["ReadWriteOnce"]}
    return storage(volumes.CLAIM, "data", spec={**spec, "resources": {"requests": {"storage": size}}})


def local_volume(node: str, size: str = "1Ti", **spec: Any) -> tuple[volumes.Name, volumes.StorageObject | None]:
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}}
    disk = {"storageClassName": "local", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}
    return storage(volumes.VOLUME, f"disk-{node}", spec={**disk, "nodeAffinity": affinity, **spec})


def fitting(there: SchedulerCache) -> set[str]:
    with_data = pod(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}])
    said = {name: verdict(there, with_data, name) for name in ("node-a", "node-b")}
    assert set(said.values()) <= {None, "has no volume for the pod's claim data, and none can be provisioned there"}
    return {name for name, why in said.items() if why is None}


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ([], set()),
        ([local_volume("node-b")], {"node-b"}),
        ([local_volume("node-a"), local_volume("node-b")], {"node-a", "node-b"}),
        ([local_volume("node-b", size="1Gi")], set()),
        ([local_volume("node-b", accessModes=["ReadOnlyMany"])], set()),
        ([local_volume("node-b", volumeMode="Block")], set()),
        ([local_volume("node-b", storageClassName="other")], set()),
        ([local_volume("node-b", claimRef={"namespace": "default", "name": "another"})], set()),
        ([local_volume("node-b", nodeAffinity=None)], {"node-a", "node-b"}),
    ],
)
def test_unbound_claim_needs_a_node_with_a_free_local_volume(more: list[Any], where: set[str]) -> None:
    there = cache(node_spec(), node_spec("node-b"))
    for name, found in (local_class(), unbound(), *more):
        there.put_storage(name, None, found)
    assert fitting(there) == where


def test_claimed_volume_is_not_free() -> None:
    there = cache(node_spec(), node_spec("node-b"))
    name, free = local_volume("node-b")
    for key, found in (local_class(), unbound(), (name, free)):
        there.put_storage(key, None, found)
    there.put_storage(name, free, local_volume("node-b", claimRef={"namespace": "default", "name": "another"})[1])
    assert fitting(there) == set()
    there.put_storage(name, local_volume("node-b", claimRef={"namespace": "default", "name": "another"})[1], free)
    assert fitting(there) == {"node-b"}


@pytest.mark.parametrize(
    ("topologies", "where"),
    [
        (None, {"node-a", "node-b"}),
        ([{"matchLabelExpressions": [{"key": "zone", "values": ["b", "c"]}]}], {"node-b"}),
        ([{"matchLabelExpressions": [{"key": "zone", "values": ["c"]}]}], set()),
    ],
)
def test_volume_is_provisioned_where_its_class_allows_it(topologies: Any, where: set[str]) -> None:
    there = cache(node_spec(zone="a"), node_spec("node-b", zone="b"))
    zonal = local_class("zonal", provisioner="ebs.csi.aws.com", allowedTopologies=topologies)
    for name, found in (zonal, unbound("zonal")):
        there.put_storage(name, None, found)
    assert fitting(there) == where


def test_class_with_immediate_binding_does_not_restrict_nodes() -> None:
    there = cache(node_spec(), node_spec("node-b"))
    there.put_storage(*_before(unbound()))
    assert fitting(there) == {"node-a", "node-b"}
    there.put_storage(*_before(local_class(volumeBindingMode="Immediate")))
    assert fitting(there) == {"node-a", "node-b"}


def _before(named: tuple[volumes.Name, Any]) -> tuple[volumes.Name, None, Any]:
    return named[0], None, named[1]


@pytest.mark.parametrize(
    ("asked", "rejected"),
    [
        ({"gpushare.io/gpu-percent": "50"}, {"closed"}),
        ({"gpushare.io/gpu-percent": "90"}, set()),  # more than the ledger has, so each GPU has its own reason
        ({"gpushare.io/gpu-percent": "50", "ephemeral-storage": "1"}, {"open", "closed"}),
        ({"cpu": "1"}, set()),
    ],
)
def test_misfits_are_the_nodes_that_the_filter_rejects(asked: dict[str, str], rejected: set[str]) -> None:
    ledger_free = 80
    there = SchedulerCache(is_full=lambda _, amounts: any(amount > ledger_free for _, amount in amounts))
    for name, offered in (("open", 100), ("closed", 0)):
        spec = node_spec(name)
        amounts = {**(spec.allocatable or {}), **dict.fromkeys(OWN, offered)}
        there.put_node_spec(name, dataclasses.replace(spec, allocatable=amounts))
    manifest = pod()
    manifest["spec"]["containers"][0]["resources"] = {"requests": asked}

    def misfits(itself: str | None = None) -> set[str]:
        node_filter = there.node_filter(
            PodKey.from_manifest(manifest), PodAffinity.from_manifest(manifest), itself=itself
        )
        found = {name for name in ("open", "closed") if node_filter.misfits() >> there.row(name) & 1}
        assert found == {name for name in ("open", "closed") if node_filter(name) is not None}
        return found

    assert misfits() == rejected
    ledger_free = 0
    for name in ("open", "closed"):
        there.forget(name)
    assert "closed" not in misfits() or "ephemeral-storage" in asked
    ledger_free = 80
    there.put("one", PodInfo.from_manifest(manifest, "open"))  # the kubelet offers only 50 now
    ledger_free = 60
    there.forget("closed")
    assert misfits("one") == rejected
