"""What the agent keeps of the pods of its node."""

from __future__ import annotations

from typing import Any

from deviceplugin import node_pods
from gpushare import contract, pod


def kept(spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    metadata = {"namespace": "ml", "name": "x", "uid": "u", "resourceVersion": "1", "annotations": annotations}
    status = {"phase": "Running", "podIP": "1.2.3.4"}
    return node_pods.trimmed({"metadata": {**metadata, "managedFields": []}, "spec": spec, "status": status})


def test_of_any_pod_its_runtime_class_and_of_one_with_a_share_what_it_counts_for() -> None:
    container = {"name": "main", "image": "i", "resources": {"limits": {"cpu": "1", contract.RESOURCE_PERCENT: "50"}}}
    bare = kept({"containers": [container], "runtimeClassName": "nvidia"})
    assert bare["spec"] == {"runtimeClassName": "nvidia"}
    assert bare["status"] == {"phase": "Running"}
    shared = kept({"containers": [container]}, **{contract.ALLOCATION: "a1", "other": "x"})
    assert pod.runtime_class(shared) == ""
    assert shared["spec"]["containers"] == [{"resources": {"limits": {contract.RESOURCE_PERCENT: "50"}}}]
    assert shared["metadata"]["annotations"] == {contract.ALLOCATION: "a1"}
