"""Pods with several containers, two syntaxes, or nothing to translate; and what is removed from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpushare import contract, errors, pod
from gpushare.syntaxes import translation
from gpushare.syntaxes.translation import SYNTAXES
from tests.gpushare.syntaxes import equivalents
from tests.gpushare.syntaxes.equivalents import CONTAINERS, asking

KUBESHARE = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0"}


def spelled(manifest: dict[str, Any]) -> dict[str, str]:
    found = translation.translate(manifest)
    assert found is not None
    return dict(found.spelled)


def refused(manifest: dict[str, Any]) -> str:
    with pytest.raises(errors.GpushareError) as caught:
        translation.translate(manifest)
    return str(caught.value)


def test_the_only_share_names_its_container_if_the_pod_has_several() -> None:
    assert spelled(asking({"main": {"nvidia.com/gpumem": "3000"}})) == {
        contract.MEMORY: "3000Mi",
        contract.CONTAINER: "main",
    }
    assert spelled(asking(annotations={"gpu-fraction": "0.5"}))[contract.CONTAINER] == "sidecar"
    injected = {"gpu-fraction": "0.5", pod.DEFAULT_CONTAINER: "main"}
    assert spelled(asking(annotations=injected))[contract.CONTAINER] == "main"
    second = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "main"}
    assert spelled(asking(annotations=second))[contract.CONTAINER] == "main"


def test_shares_of_several_containers_are_separate() -> None:
    limits = {
        "sidecar": {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "2000"},
        "main": {"volcano.sh/vgpu-memory": "3000", "volcano.sh/vgpu-cores": "50"},
    }
    assert spelled(asking(limits)) == {
        f"{contract.MEMORY}.sidecar": "2000Mi",
        f"{contract.GPUS}.sidecar": "2",
        f"{contract.REQUEST}.main": "0.5",
        f"{contract.LIMIT}.main": "0.5",
        f"{contract.MEMORY}.main": "3000Mi",
    }
    keys = {f"nvidia.com/container.{name}.gpu-memory.limit": "8Gi" for name in CONTAINERS}
    assert spelled(asking(annotations=keys)) == {f"{contract.MEMORY}.{name}": "8Gi" for name in CONTAINERS}


def test_an_init_container_can_have_the_share() -> None:
    manifest = asking(annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "warm"})
    manifest["spec"]["initContainers"] = [{"name": "warm", "image": "x"}]
    assert spelled(manifest) == {contract.REQUEST: "0.5", contract.CONTAINER: "warm"}


def test_all_containers_of_a_kubeshare_pod_use_the_share_together() -> None:
    assert spelled(asking(labels=KUBESHARE)) == {contract.REQUEST: "0.5", contract.CONTAINER: "sidecar,main"}


def test_isolations_of_containers_that_differ_are_refused() -> None:
    keys = {f"nvidia.com/container.{name}.gpu-memory.limit": "8Gi" for name in CONTAINERS}
    keys["nvidia.com/container.sidecar.gpu-compute.mode"] = "time-slicing"
    keys["nvidia.com/container.main.gpu-compute.mode"] = "sm-sharing"
    assert "all shares of a pod have one isolation" in refused(asking(annotations=keys))


def test_a_fraction_and_a_whole_gpu_are_refused() -> None:
    manifest = asking({"main": {"nvidia.com/gpu": "1"}}, annotations={"gpu-fraction": "0.5"})
    assert refused(manifest) == (
        'nvidia.com/gpu "1" of container "main" cannot be combined with a fraction of a GPU: remove one'
    )


def test_a_pod_can_use_only_one_syntax() -> None:
    two = asking({"main": {"nvidia.com/gpumem": "3000"}}, annotations={"gpu-fraction": "0.5"})
    sentence = "is HAMi's syntax and gpu-fraction is KAI's: a pod can use only one, so remove one"
    assert refused(two) == f"nvidia.com/gpumem {sentence} (it may come from a LimitRange)"
    # Also where only one of them is understood.
    with pytest.raises(errors.GpushareError, match="only one"):
        translation.translate(two, (SYNTAXES["hami"],))


def test_a_pod_with_a_request_of_gpushares_too_is_refused() -> None:
    both = asking({"main": {"aliyun.com/gpu-mem": "3"}}, annotations={f"{contract.MEMORY}.main": "8Gi"})
    assert refused(both) == (
        "gpushare.io/memory.main and aliyun.com/gpu-mem, Aliyun's syntax, both ask for a share: remove one "
        "(it may come from a LimitRange)"
    )
    written = asking(annotations={"gpu-fraction": "0.5", contract.REQUEST: "0.5"})
    assert refused(written).endswith("both ask for a share: remove one")


def test_the_resources_that_a_share_replaces_are_known() -> None:
    found = translation.translate(asking({"main": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "cpu": "1"}}))
    assert found is not None
    assert found.replaced == {"nvidia.com/gpu", "nvidia.com/gpumem"}


def test_other_annotations_of_gpushare_stay() -> None:
    found = translation.translate(asking({"main": {"aliyun.com/gpu-mem": "3"}}, annotations={contract.LATENCY: "true"}))
    assert found is not None
    assert pod.annotations_of(found.manifest)[contract.LATENCY] == "true"


@pytest.mark.parametrize(
    ("theirs", "key", "value", "meant"),
    [
        ({"nvidia.com/vgpu-mode": "mps"}, contract.ISOLATION, "arbiter", "mps"),
        ({"nvidia.com/use-gputype": "A100"}, contract.MODEL, "*H100*", "*A100*"),
        ({"hami.io/gpu-scheduler-policy": "binpack"}, contract.POLICY, "spread", "pack"),
        ({}, contract.CONTAINER, "sidecar", "main"),
    ],
)
def test_an_annotation_of_gpushares_that_differs_is_refused(
    theirs: dict[str, str], key: str, value: str, meant: str
) -> None:
    limits = {"main": {"nvidia.com/gpumem": "3000"}}
    assert refused(asking(limits, annotations={**theirs, key: value})) == (
        f'{key} "{value}" differs from "{meant}", which the pod requests in HAMi\'s syntax: remove one'
    )
    assert spelled(asking(limits, annotations={**theirs, key: meant}))[key] == meant


@pytest.mark.parametrize("manifest", equivalents.without())
def test_other_pods_are_not_translated(manifest: dict[str, Any]) -> None:
    assert translation.translate(manifest) is None


def test_a_syntax_that_is_not_understood_is_left_alone() -> None:
    manifest = asking({"main": {"nvidia.com/gpumem": "3000"}})
    assert translation.translate(manifest, (SYNTAXES["kai"],)) is None


def test_the_pod_that_was_given_is_not_changed() -> None:
    manifest = asking({"main": {"nvidia.com/gpumem": "3000"}}, annotations={"a": "b"}, labels={"c": "d"})
    before = json.dumps(manifest)
    spelled(manifest)
    assert json.dumps(manifest) == before


def test_what_has_no_effect_is_said() -> None:
    def notes(manifest: dict[str, Any]) -> tuple[str, ...]:
        found = translation.translate(manifest)
        assert found is not None
        return found.notes

    assert notes(asking(labels={**KUBESHARE, "sharedgpu/priority": "100"})) == (
        "sharedgpu/priority has no effect in gpushare: write spec.priorityClassName",
    )
    misspelled = {"sharedgpu/gpu_memory": "8", "sharedgpu/gpu_uuid": "GPU-1"}  # its scheduler writes the latter
    assert notes(asking(labels={**KUBESHARE, **misspelled})) == ("sharedgpu/gpu_memory has no effect in gpushare",)
    misspelled = {"hami.io/gpu-schedular-policy": "binpack", "hami.io/bind-phase": "success"}
    assert notes(asking({"main": {"nvidia.com/gpumem": "3000"}}, annotations=misspelled)) == (
        "hami.io/gpu-schedular-policy has no effect in gpushare",
    )
    (limited,) = notes(asking({"main": {"nvidia.com/gpu.shared": "3"}}))
    assert "here it is 30 % of the GPU's memory" in limited


def test_results_of_the_other_scheduler_are_removed() -> None:
    annotations = {"gpu-fraction": "0.5", "received-resource-type": "Fraction", "kept": "yes"}
    found = translation.translate(asking(annotations=annotations))
    assert found is not None
    assert set(pod.annotations_of(found.manifest)) == {"kept", contract.REQUEST, contract.CONTAINER}


@pytest.mark.parametrize(
    "manifest",
    [
        asking({"main": {"nvidia.com/gpumem": "3000"}}, labels={"hami.io/team": "a"}),
        asking({"main": {"aliyun.com/gpu-mem": "8"}}, labels={"aliyun.com/gpu-count": "2"}),
        asking(annotations={"gpu-fraction": "0.5"}, labels={"mps": "web", "gpu-fraction": "x", "runai-gpu-group": "g"}),
        asking(labels={**KUBESHARE, "sharedgpu/group_name": "g"}),
    ],
)
def test_labels_stay_because_a_selector_may_name_them(manifest: dict[str, Any]) -> None:
    found = translation.translate(manifest)
    assert found is not None
    assert found.manifest["metadata"]["labels"] == manifest["metadata"]["labels"]
    assert translation.translate(found.manifest) is None


def test_gpushares_annotations_override_kubeshares_labels() -> None:
    assert translation.translate(asking(labels=KUBESHARE, annotations={f"{contract.REQUEST}.main": "0.7"})) is None
    assert spelled(asking(labels=KUBESHARE, annotations={contract.ISOLATION: "mps"}))[contract.REQUEST] == "0.5"
