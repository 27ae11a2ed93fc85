"""What is denied, in which words; and what is only told."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpushare import contract, placement
from gpushare import request as requests
from gpushare.refusal import Refusal
from tests import builders
from webhook.pods import mutation, validation


def denial(manifest: dict[str, Any]) -> validation.Denial:
    answer = validation.read(manifest)
    assert isinstance(answer, validation.Denial)
    return answer


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"request": "1.5"}, 'gpushare.io/request "1.5" is more than one GPU'),
        ({"request": "NaN"}, 'gpushare.io/request "NaN" is not a part of a GPU'),
        ({"request": "0.5", "requests": "1"}, 'gpushare.io/requests "1" is not a gpushare key'),
        ({"request": "0.5", "isolation": "mps"}, 'gpushare.io/isolation "mps" is not built yet'),
        ({"memory": "5Ei", "gpus": "2"}, "on 2 GPUs is more bytes than there can be"),
    ],
)
def test_bad_requests_are_denied_by_name(asked: dict[str, str], says: str) -> None:
    assert says in denial(builders.pod(**asked)).sentence
    assert denial(builders.pod(**asked)).code == 422


@pytest.mark.parametrize(
    ("spec", "says", "code"),
    [
        ({"nodeName": "node-a"}, 'spec.nodeName "node-a" goes around scheduling', 422),
        ({"hostPID": True}, "spec.hostPID true", 403),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, '"i" is privileged', 403),
        (
            {"initContainers": [{"name": "i", "resources": {"limits": {contract.RESOURCE_PERCENT: "1"}}}]},
            'container "i" asks for gpushare.io/gpu-percent "1", which gpushare works out from the annotations',
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
        ({"limits": {"nvidia.com/gpu": 1}}, 'asks for nvidia.com/gpu "1" and for a share as well'),
        ({"requests": {"nvidia.com/mig-1g.5gb": "1"}}, "asks for nvidia.com/mig-1g.5gb"),
        ({"limits": {contract.RESOURCE_PERCENT: "70"}}, 'asks for gpushare.io/gpu-percent "70"'),
    ],
)
def test_resources_beside_a_share_are_denied(resources: dict[str, Any], says: str) -> None:
    manifest = builders.pod(request="0.5")
    manifest["spec"]["containers"][0]["resources"] = resources
    assert says in denial(manifest).sentence


def test_a_container_without_a_share_may_have_a_whole_gpu() -> None:
    manifest = builders.pod(containers=("main", "other"), request="0.5")
    manifest["spec"]["containers"][1]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert isinstance(validation.read(manifest), requests.Request)


def test_what_a_pod_would_be_given_anyway_may_be_in_it() -> None:
    manifest = builders.pod(request="0.5", memory="1.5Gi")
    request = requests.parse(manifest)
    result = placement.place(builders.views(builders.node()), request)
    assert not isinstance(result, Refusal)
    for outcome in (mutation.Placed("i", "node-a", "node-a", result.shares), Refusal("full")):
        copied: Any = copy.deepcopy(mutation.rewrite(manifest, request, outcome))
        assert validation.read(copied) == request
        copied["spec"]["containers"][0]["resources"]["limits"][contract.RESOURCE_MEMORY] = "1Gi"
        del copied["metadata"]["labels"]
        assert isinstance(validation.read(copied), validation.Denial)


def test_a_name_too_long_for_an_annotation_is_denied_only_where_one_is_needed() -> None:
    long = "c" * 55
    manifest = builders.pod(containers=("main", long), request="0.5")
    manifest["metadata"]["annotations"][f"gpushare.io/request.{long}"] = "0.5"
    assert f'container "{long}" has too long a name' in denial(manifest).sentence
    assert "at most 53 characters" in denial(manifest).sentence
    assert isinstance(validation.read(builders.pod(containers=(long,), request="0.5")), requests.Request)


def test_forged_results_are_told() -> None:
    manifest = builders.pod(request="0.5", allocation="mine", reason="because")
    warnings = validation.warnings(manifest, requests.parse(manifest))
    assert warnings == (
        "gpushare.io/allocation is written by gpushare alone: yours was removed",
        "gpushare.io/reason is written by gpushare alone: yours was removed",
    )


def test_a_gated_pod_that_comes_again_is_told_nothing_of_its_own_reason() -> None:
    manifest = builders.pod(request="0.5")
    request = requests.parse(manifest)
    gated: Any = mutation.rewrite(manifest, request, Refusal("full"))
    assert validation.warnings(gated, request) == ()


def test_devices_that_are_replaced_are_told() -> None:
    manifest = builders.pod(containers=("main", "other"), request="0.5")
    for container in manifest["spec"]["containers"]:
        container["env"] = [{"name": contract.ENV_VISIBLE_DEVICES, "value": "all"}]
    assert validation.warnings(manifest, requests.parse(manifest))[1:] == (
        'NVIDIA_VISIBLE_DEVICES of container "main" was replaced by the GPUs of its share',
        'NVIDIA_VISIBLE_DEVICES of container "other" was replaced by void: it has no share',
    )
    after: Any = mutation.rewrite(manifest, requests.parse(manifest), Refusal("full"))
    assert validation.warnings(after, requests.parse(after)) == ()


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
    assert validation.warnings(manifest, requests.parse(manifest)) == (
        (
            f'{key} "{value}" is less than a CUDA context takes, 100 to 600 MiB for each process: CUDA programs will be '
            "out of memory at once",
        )
        if key
        else ()
    )
