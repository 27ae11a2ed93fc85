"""The rewritten pod, by example."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract, placement
from gpushare import request as requests
from gpushare.nodefilters import share_resources
from gpushare.refusal import Refusal
from tests import builders
from webhook.pods import mutation


def placed(manifest: dict[str, Any], *nodes: Any) -> tuple[requests.Request, mutation.Placed]:
    request = requests.parse(manifest)
    result = placement.place(builders.views(*(nodes or (builders.node(),))), request)
    assert not isinstance(result, Refusal), result.reason
    return request, mutation.Placed("identity", result.node, "host-a", result.shares)


def rewritten(manifest: dict[str, Any]) -> Any:
    return mutation.rewrite(manifest, *placed(manifest))


def container(after: Any, index: int = 0) -> Any:
    return after["spec"]["containers"][index]


def environment(container_spec: Any) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container_spec["env"]}


def test_half_a_gpu() -> None:
    after = rewritten(builders.pod(request="0.5"))
    assert after["metadata"]["labels"] == {contract.SHARE_LABEL: "true"}
    assert after["metadata"]["annotations"] == {
        contract.REQUEST: "0.5",
        contract.ALLOCATION: "identity",
        contract.NODE: "node-a",
        contract.GPU_UUIDS: "GPU-node-a-0",
    }
    assert after["spec"]["nodeSelector"] == {contract.HOSTNAME_LABEL: "host-a"}
    assert container(after)["resources"] == {
        "limits": {contract.RESOURCE_PERCENT: "50"},
        "requests": {contract.RESOURCE_PERCENT: "50"},
    }
    assert environment(container(after)) == {
        contract.ENV_VISIBLE_DEVICES: "GPU-node-a-0",
        contract.ENV_REQUEST: "50",
        contract.ENV_LIMIT: "100",
        contract.ENV_MEMORY: str(40 * builders.GIB),
    }


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        pytest.param({"request": "0.3"}, {"percent": "30"}, id="compute"),
        pytest.param({"request": "0.3", "memory": "8Gi"}, {"percent": "30", "memory": "8Gi"}, id="both"),
        pytest.param({"memory": "1.5Gi"}, {"idle": "1", "memory": "1536Mi"}, id="memory-alone"),
        pytest.param({"memory": "25%"}, {"idle": "1"}, id="part-of-the-memory-is-no-number-of-bytes-yet"),
        pytest.param({"gpus": "2"}, {"percent": "200"}, id="whole-gpus"),
        pytest.param({"request": "0.5", "memory": "1Mi", "gpus": "3"}, {"percent": "150", "memory": "3Mi"}, id="three"),
        pytest.param({"memory": "1Gi", "gpus": "4"}, {"idle": "4", "memory": "4Gi"}, id="four-idle-shares"),
    ],
)
def test_resources_match_the_request(asked: dict[str, str], wanted: dict[str, str]) -> None:
    (demand,) = requests.parse(builders.pod(**asked)).demands
    assert share_resources.resources(demand, "main") == {
        f"gpushare.io/gpu-{key}": value for key, value in wanted.items()
    }


def test_containers_that_share_are_counted_once() -> None:
    manifest = builders.pod(containers=("main", "side"), request="0.5", memory="1Gi", container="main,side")
    after = rewritten(manifest)
    assert container(after, 0)["resources"]["limits"] == {
        contract.RESOURCE_PERCENT: "50",
        contract.RESOURCE_MEMORY: "1Gi",
    }
    assert container(after, 1)["resources"]["limits"] == {contract.RESOURCE_IDLE: "1"}
    assert environment(container(after, 0)) == environment(container(after, 1))


def test_different_containers_have_separate_annotations() -> None:
    manifest = builders.pod(containers=("main", "side"), request="0.8")
    manifest["metadata"]["annotations"]["gpushare.io/request.side"] = "0.5"
    after = rewritten(manifest)
    annotations = after["metadata"]["annotations"]
    assert annotations[contract.GPU_UUIDS] == "GPU-node-a-0,GPU-node-a-1"
    assert annotations[f"{contract.GPU_UUIDS}.main"] == "GPU-node-a-0"
    assert annotations[f"{contract.GPU_UUIDS}.side"] == "GPU-node-a-1"
    assert environment(container(after, 1))[contract.ENV_VISIBLE_DEVICES] == "GPU-node-a-1"


def test_memory_fraction_of_different_gpus_uses_the_smallest() -> None:
    manifest = builders.pod(memory="50%", gpus="2")
    node = builders.node(gpus=0)
    gpus = (builders.gpu(0, memory_gib=80), builders.gpu(1, memory_gib=40))
    request, outcome = placed(manifest, type(node)(node.name, gpus=gpus))
    after = mutation.rewrite(manifest, request, outcome)
    variables = environment(container(after))
    assert variables[contract.ENV_MEMORY] == str(20 * builders.GIB)
    assert set(variables[contract.ENV_VISIBLE_DEVICES].split(",")) == {"GPU-node-a-0", "GPU-node-a-1"}


def test_a_sidecar_among_the_init_containers_can_have_the_share() -> None:
    manifest = builders.pod(request="0.5", container="proxy")
    manifest["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    after = rewritten(manifest)
    assert after["spec"]["initContainers"][0]["resources"]["limits"] == {contract.RESOURCE_PERCENT: "50"}
    assert "resources" not in container(after)


VOID = {"name": contract.ENV_VISIBLE_DEVICES, "value": "void"}
ALL = {"name": contract.ENV_VISIBLE_DEVICES, "value": "all"}
REFERRED = {"name": contract.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


@pytest.mark.parametrize("is_init", [False, True])
@pytest.mark.parametrize(
    ("given", "env"),
    [
        pytest.param({}, [VOID], id="its-image-may-ask-for-all"),
        pytest.param({"env": None, "resources": None}, [VOID], id="null"),
        pytest.param({"env": [ALL]}, [VOID], id="asks-itself"),
        pytest.param({"env": [REFERRED]}, [VOID], id="by-a-reference"),
        pytest.param({"env": [ALL, {"name": "A"}, VOID]}, [VOID, {"name": "A"}, VOID], id="twice"),
        pytest.param({"env": [VOID]}, [VOID], id="void-by-itself"),
        pytest.param({"env": [{**VOID, "value": "none"}]}, [{**VOID, "value": "none"}], id="a-driver-and-no-gpu"),
        pytest.param({"env": [{"name": VOID["name"]}]}, [{"name": VOID["name"]}], id="nothing"),
        pytest.param({"resources": {"limits": {"cpu": "1"}}}, [VOID], id="other-resources"),
        pytest.param({"env": [ALL], "resources": {"limits": {"nvidia.com/gpu": "1"}}}, [ALL], id="a-gpu-of-its-own"),
        pytest.param({"resources": {"requests": {"nvidia.com/mig-1g.5gb": "1"}}}, None, id="a-mig-device"),
        pytest.param({"resources": {"claims": [{"name": "gpu"}]}}, None, id="a-claim"),
    ],
)
def test_a_container_without_a_share_sees_no_gpu(given: dict[str, Any], env: list[Any] | None, is_init: bool) -> None:
    manifest = builders.pod(request="0.5", container="main")
    listed = manifest["spec"].setdefault("initContainers" if is_init else "containers", [])
    listed.append({"name": "side", "image": "x", **given})
    for outcome in (placed(manifest)[1], Refusal("full")):
        after: Any = mutation.rewrite(manifest, requests.parse(manifest), outcome)
        (side,) = [
            entry for entry in after["spec"]["initContainers" if is_init else "containers"] if entry["name"] == "side"
        ]
        assert side.get("env") == env
        assert mutation.patch(after, mutation.rewrite(after, requests.parse(after), outcome)) == []


def test_a_gated_pod_will_learn_its_gpus_from_its_annotation() -> None:
    manifest = builders.pod(request="0.5", memory="1Gi", memory_limit="2Gi")
    after = mutation.rewrite(manifest, requests.parse(manifest), Refusal("no GPU is free"))
    assert after["spec"]["schedulingGates"] == [{"name": contract.SCHEDULING_GATE}]
    assert after["metadata"]["annotations"][contract.REASON] == "no GPU is free"
    assert "nodeSelector" not in after["spec"]
    # Resources cannot be added once the pod is stored.
    assert container(after)["resources"]["requests"][contract.RESOURCE_PERCENT] == "50"
    variables = environment(container(after))
    assert variables[contract.ENV_VISIBLE_DEVICES] == {
        "fieldRef": {"fieldPath": "metadata.annotations['gpushare.io/gpu-uuids']"}
    }
    assert variables[contract.ENV_MEMORY] == str(builders.GIB)
    assert variables[contract.ENV_MEMORY_LIMIT] == str(2 * builders.GIB)


def test_gated_pod_with_a_memory_fraction_has_no_memory_variable() -> None:
    manifest = builders.pod(request="0.5")
    after = mutation.rewrite(manifest, requests.parse(manifest), Refusal("no GPU is free"))
    assert contract.ENV_MEMORY not in environment(container(after))


def test_duplicate_variables_are_all_replaced() -> None:
    manifest = builders.pod(request="0.5")
    twice = [{"name": contract.ENV_VISIBLE_DEVICES, "value": value} for value in ("all", "none")]
    manifest["spec"]["containers"][0]["env"] = [twice[0], {"name": "A", "value": "1"}, twice[1]]
    after = rewritten(manifest)
    values = [entry["value"] for entry in container(after)["env"] if entry["name"] == contract.ENV_VISIBLE_DEVICES]
    assert values == ["GPU-node-a-0", "GPU-node-a-0"]
    assert [entry["name"] for entry in container(after)["env"]][-3:] == [twice[0]["name"], "A", twice[1]["name"]]


def test_gates_of_other_controllers_are_kept() -> None:
    manifest = builders.pod(request="0.5")
    manifest["spec"]["schedulingGates"] = [{"name": "example.com/quota"}, {"name": contract.SCHEDULING_GATE}]
    assert rewritten(manifest)["spec"]["schedulingGates"] == [{"name": "example.com/quota"}]


def test_reference_completed_by_the_api_server_is_kept() -> None:
    manifest = builders.pod(request="0.5")
    request = requests.parse(manifest)
    gated: Any = mutation.rewrite(manifest, request, Refusal("full"))
    gated["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    assert mutation.patch(gated, mutation.rewrite(gated, request, Refusal("full"))) == []


def test_null_counts_as_absent() -> None:
    manifest = builders.pod(request="0.5")
    manifest["metadata"]["labels"] = None
    manifest["spec"]["schedulingGates"] = None
    gated = mutation.rewrite(manifest, requests.parse(manifest), Refusal("full"))
    assert gated["spec"]["schedulingGates"] == [{"name": contract.SCHEDULING_GATE}]


def test_a_pod_that_is_not_evicted_keeps_its_node_from_autoscalers() -> None:
    assert (
        contract.AUTOSCALERS_KEEP.items()
        <= rewritten(builders.pod(gpus="1", no_evict="true"))["metadata"]["annotations"].items()
    )
    manifest = builders.pod(gpus="1", no_evict="true")
    manifest["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] = "4h"
    assert rewritten(manifest)["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "4h"
    assert not contract.AUTOSCALERS_KEEP.keys() & rewritten(builders.pod(gpus="1"))["metadata"]["annotations"].keys()
