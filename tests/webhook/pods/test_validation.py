"""Denied pods and their sentences, and warnings."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpushare import contract, placement
from gpushare import request as requests
from gpushare.refusal import Refusal
from tests import builders
from webhook.pods import mutation, validation
from webhook.pods.pod_manifest import PodSpecView


def denial(manifest: dict[str, Any]) -> validation.Denial:
    answer = validation.read(PodSpecView.read(manifest))
    assert isinstance(answer, validation.Denial)
    return answer


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"request": "1.5"}, 'gpushare.io/request "1.5" is more than one GPU'),
        ({"request": "NaN"}, 'gpushare.io/request "NaN" is not a part of a GPU'),
        ({"request": "0.5", "requests": "1"}, 'gpushare.io/requests "1" is not a gpushare key'),
        (
            {"request": "0.5", "isolation": "wall"},
            'gpushare.io/isolation "wall" is unknown: write one of auto, arbiter',
        ),
        ({"memory": "5Ei", "gpus": "2"}, "on 2 GPUs exceeds 2^63-1 bytes"),
    ],
)
def test_bad_requests_are_denied_by_name(asked: dict[str, str], says: str) -> None:
    assert says in denial(builders.pod(**asked)).sentence
    assert denial(builders.pod(**asked)).code == 422


@pytest.mark.parametrize(
    ("spec", "says", "code"),
    [
        ({"nodeName": "node-a"}, 'spec.nodeName "node-a" bypasses scheduling', 422),
        ({"hostPID": True}, "spec.hostPID true", 403),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, '"i" is privileged', 403),
        (
            {"initContainers": [{"name": "i", "resources": {"limits": {contract.RESOURCE_PERCENT: "1"}}}]},
            'container "i" requests gpushare.io/gpu-percent "1", which gpushare computes from the annotations',
            422,
        ),
    ],
)
def test_pods_that_no_limit_could_hold_are_denied(spec: dict[str, Any], says: str, code: int) -> None:
    manifest = builders.pod(request="0.5")
    manifest["spec"].update(spec)
    assert says in denial(manifest).sentence
    assert denial(manifest).code == code


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"limits": {"nvidia.com/gpu": 1}}, 'requests both nvidia.com/gpu "1" and a share'),
        ({"requests": {"nvidia.com/mig-1g.5gb": "1"}}, "requests both nvidia.com/mig-1g.5gb"),
        ({"limits": {contract.RESOURCE_PERCENT: "70"}}, 'requests gpushare.io/gpu-percent "70"'),
    ],
)
def test_other_gpu_resources_with_a_share_are_denied(resources: dict[str, Any], says: str) -> None:
    manifest = builders.pod(request="0.5")
    manifest["spec"]["containers"][0]["resources"] = resources
    assert says in denial(manifest).sentence


def test_container_without_a_share_may_have_a_whole_gpu() -> None:
    manifest = builders.pod(containers=("main", "other"), request="0.5")
    manifest["spec"]["containers"][1]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert isinstance(validation.read(PodSpecView.read(manifest)), requests.Request)


def test_matching_resources_in_the_pod_are_accepted() -> None:
    manifest = builders.pod(request="0.5", memory="1.5Gi")
    request = requests.parse(manifest)
    result = placement.place(builders.views(builders.node()), request)
    assert not isinstance(result, Refusal)
    for outcome in (mutation.Placed("i", "node-a", "node-a", result.shares), Refusal("full")):
        copied: Any = copy.deepcopy(mutation.rewrite(manifest, request, outcome))
        assert validation.read(PodSpecView.read(copied)) == request
        copied["spec"]["containers"][0]["resources"]["limits"][contract.RESOURCE_MEMORY] = "1Gi"
        del copied["metadata"]["labels"]
        assert isinstance(validation.read(PodSpecView.read(copied)), validation.Denial)


def test_container_name_too_long_for_its_annotation_is_denied() -> None:
    long = "c" * 55
    manifest = builders.pod(containers=("main", long), request="0.5")
    manifest["metadata"]["annotations"][f"gpushare.io/request.{long}"] = "0.5"
    assert f'container "{long}" has a name that is too long' in denial(manifest).sentence
    assert "at most 53 characters" in denial(manifest).sentence
    assert isinstance(
        validation.read(PodSpecView.read(builders.pod(containers=(long,), request="0.5"))), requests.Request
    )


def test_forged_results_cause_warnings() -> None:
    manifest = builders.pod(request="0.5", allocation="mine", reason="because")
    warnings = validation.warnings(PodSpecView.read(manifest), requests.parse(manifest))
    assert warnings == (
        "only gpushare writes gpushare.io/allocation: yours was removed",
        "only gpushare writes gpushare.io/reason: yours was removed",
    )


def test_reinvoked_gated_pod_gets_no_warning_about_its_reason() -> None:
    manifest = builders.pod(request="0.5")
    request = requests.parse(manifest)
    gated: Any = mutation.rewrite(manifest, request, Refusal("full"))
    assert validation.warnings(PodSpecView.read(gated), request) == ()


def test_replaced_devices_cause_a_warning() -> None:
    manifest = builders.pod(containers=("main", "other"), request="0.5")
    for container in manifest["spec"]["containers"]:
        container["env"] = [{"name": contract.ENV_VISIBLE_DEVICES, "value": "all"}]
    assert validation.warnings(PodSpecView.read(manifest), requests.parse(manifest))[1:] == (
        'NVIDIA_VISIBLE_DEVICES of container "main" was replaced by the GPUs of its share',
        'NVIDIA_VISIBLE_DEVICES of container "other" was replaced by void: it has no share',
    )
    after: Any = mutation.rewrite(manifest, requests.parse(manifest), Refusal("full"))
    assert validation.warnings(PodSpecView.read(after), requests.parse(after)) == ()


@pytest.mark.parametrize(
    ("asked", "key", "value"),
    [
        ({"memory": "8M"}, "gpushare.io/memory", "8M"),
        ({"request": "0.5", "memory.main": "99Mi"}, "gpushare.io/memory.main", "99Mi"),
        ({"memory": "100Mi"}, "", ""),
        ({"request": "0.01"}, "", ""),
        ({"memory": "1%"}, "", ""),
    ],
)
def test_less_memory_than_a_context_takes_is_a_warning(asked: dict[str, str], key: str, value: str) -> None:
    manifest = builders.pod(**asked)
    assert validation.warnings(PodSpecView.read(manifest), requests.parse(manifest)) == (
        (
            f'{key} "{value}" is less than a CUDA context needs, 100 to 600 MiB per process: CUDA programs will run '
            "out of memory at once",
        )
        if key
        else ()
    )
