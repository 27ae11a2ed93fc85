"""The parts of a pod that the agent keeps."""

from __future__ import annotations

from typing import Any

import pytest

from deviceplugin import cluster_objects
from deviceplugin.arbiter import tenant
from deviceplugin.denial import pod_denial
from deviceplugin.host.kernel_process import Container
from gpushare import contract, pod
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import GpuNode


def kept(spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    metadata = {"namespace": "ml", "name": "x", "uid": "u", "resourceVersion": "1", "annotations": annotations}
    status = {"phase": "Running", "podIP": "1.2.3.4"}
    return cluster_objects.trimmed_pod({"metadata": {**metadata, "managedFields": []}, "spec": spec, "status": status})


def test_a_pod_is_trimmed_to_its_runtime_class_and_its_shares_resources() -> None:
    container = {"name": "main", "image": "i", "resources": {"limits": {"cpu": "1", contract.RESOURCE_PERCENT: "50"}}}
    bare = kept({"containers": [container], "runtimeClassName": "nvidia"})
    assert bare["spec"] == {"runtimeClassName": "nvidia"}
    assert bare["status"] == {"phase": "Running"}
    shared = kept({"containers": [container]}, **{contract.ALLOCATION: "a1", "other": "x"})
    assert pod.runtime_class(shared) == ""
    assert shared["spec"]["containers"] == [{"resources": {"limits": {contract.RESOURCE_PERCENT: "50"}}}]
    assert shared["metadata"]["annotations"] == {contract.ALLOCATION: "a1"}


def test_the_group_of_a_pod_is_kept() -> None:
    share = GivenShare(("main",), ("GPU-00000000-0000-0000-0000-000000000000",), 50, 100, 1 << 30)
    node = GpuNode("node-a", allocations=(Allocation("a1", PodRef("ml", "x", "u"), (share,)),))
    shared = kept({}, **{contract.ALLOCATION: "a1", contract.GROUP: "ranks"})
    found = tenant.find(Container("u", "c" * 64), pods=[shared], node=node)
    assert isinstance(found, tenant.Tenant)
    assert found.group == "ml/ranks"


@pytest.mark.parametrize("resources", [{"limits": {"nvidia.com/gpu": "1"}}, {"claims": [{"name": "gpu"}]}])
def test_whole_gpus_of_another_container_are_kept(resources: dict[str, Any]) -> None:
    containers = [{"name": "main"}, {"name": "other", "resources": resources}]
    shared = kept({"containers": containers}, **{contract.ALLOCATION: "a1"})
    assert pod_denial.choose([shared]) == pod_denial.Chosen(frozenset(), ("ml/x",))
