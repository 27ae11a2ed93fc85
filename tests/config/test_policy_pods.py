"""The ValidatingAdmissionPolicy for pods: the changes to gpushare's fields that the API server allows users."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpushare import contract
from lab import lab_errors
from tests import builders
from tests.config.conftest import USER, Cluster

pytestmark = pytest.mark.apiserver

WEBHOOK = f"system:serviceaccount:{contract.SYSTEM_NAMESPACE}:{contract.WEBHOOK_SERVICE_ACCOUNT}"
MUTATED = {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE}


def pod(name: str, *, labels: dict[str, str] | None = None, gated: bool = False, **annotations: str) -> dict[str, Any]:
    manifest = builders.pod(name, **annotations)
    del manifest["metadata"]["namespace"]
    manifest["metadata"]["labels"] = labels or {}
    if labels == MUTATED:  # as the webhook would leave it
        counted = {contract.RESOURCE_PERCENT: "50"}
        manifest["spec"]["containers"][0]["resources"] = {"limits": counted, "requests": counted}
        if "allocation" in annotations:
            manifest["spec"]["nodeSelector"] = {contract.HOSTNAME_LABEL: "n1"}
    if gated:
        manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    return manifest


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Cluster:
    """The cluster with four pods: an ordinary one, one that another tool annotated, a placed one and a gated one."""
    installed.create(pod("plain"), user=USER)
    placed = pod("placed", labels=MUTATED, request="0.5", allocation="a1", node="n1", gpu_uuids="GPU-1")
    installed.create(placed, user=USER)
    installed.create(pod("gated", labels=MUTATED, gated=True, request="0.5", reason="no GPU fits"), user=USER)
    return installed


@pytest.mark.parametrize("key", [*contract.RESULT_KEYS, contract.GPU_UUIDS + ".main"])
def test_a_pod_without_a_request_cannot_claim_to_be_placed(cluster: Cluster, key: str) -> None:
    sentence = cluster.refused(pod("bare", **{key.removeprefix(contract.PREFIX): "x"}), user=USER)
    assert f"{key} is managed by gpushare: remove it, or request a share" in sentence


@pytest.mark.parametrize(
    "key", [*sorted({*contract.REQUEST_KEYS} - {*contract.SHARE_KEYS}), contract.PREFIX + "reqest"]
)
def test_a_key_that_has_no_effect_alone_is_rejected(cluster: Cluster, key: str) -> None:
    sentence = cluster.refused(pod("bare", **{key.removeprefix(contract.PREFIX): "x"}), user=USER)
    assert f"{key} alone does not request a share of a GPU: " in sentence
    assert f"add {contract.REQUEST}" in sentence
    assert ("did you mean" in sentence) == (key not in contract.REQUEST_KEYS)


@pytest.mark.parametrize(
    ("key", "meant"), [("requests", "request"), ("Memory", "memory"), ("gpu", "gpus"), ("limits.main", "limit")]
)
def test_a_misspelt_key_gets_the_likely_one(cluster: Cluster, key: str, meant: str) -> None:
    sentence = cluster.refused(pod("bare", **{key: "1"}), user=USER)
    assert f"{key} alone does not request a share of a GPU: did you mean gpushare.io/{meant}? add" in sentence


@pytest.mark.parametrize(
    "manifest", [pod("bare", labels={contract.SHARE_LABEL: "true"}), pod("bare", gated=True)], ids=["label", "gate"]
)
def test_label_and_gate_require_a_share(cluster: Cluster, manifest: dict[str, Any]) -> None:
    assert "are managed by gpushare: remove them" in cluster.refused(manifest, user=USER)


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_gpushare_resources_require_a_share(cluster: Cluster, where: str) -> None:
    manifest = pod("bare")
    taker = {"name": "taker", "image": "x", "resources": {"limits": {contract.RESOURCE_PERCENT: "50"}}}
    manifest["spec"].setdefault(where, []).append(taker)
    assert "gpushare.io resources are managed by gpushare" in cluster.refused(manifest, user=USER)


def test_gpushare_resources_of_zero_are_ignored(cluster: Cluster) -> None:
    manifest = pod("zero")
    manifest["spec"]["containers"][0]["resources"] = {"limits": {contract.RESOURCE_PERCENT: "0"}}
    cluster.create(manifest, user=USER, dry_run=True)


@pytest.mark.parametrize("key", [*contract.SHARE_KEYS, *(f"{key}.main" for key in contract.PER_CONTAINER_KEYS)])
def test_a_requesting_pod_is_rejected_without_the_webhook(cluster: Cluster, key: str) -> None:
    asks = {key.removeprefix(contract.PREFIX): "1"}
    sentence = cluster.refused(pod("bare", **asks), user=USER)
    assert f"{key} requests a share of a GPU, but gpushare has not placed this pod" in sentence
    assert "has not placed this pod" in cluster.refused(pod("bare", labels=MUTATED, **asks), user=USER)


def test_requests_in_excluded_namespaces_are_rejected(cluster: Cluster) -> None:
    command = ("create", "--namespace=kube-system", "--filename=-", "--dry-run=server")
    manifest = json.dumps(pod("bare", request="0.5"))
    assert "kube-system and gpushare-system cannot have a share" in cluster.run_refused(*command, input=manifest)


def annotated(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


@pytest.mark.parametrize("name", ["plain", "placed", "gated"])
@pytest.mark.parametrize("key", [*contract.RESULT_KEYS, contract.GPU_UUIDS + ".main"])
def test_users_cannot_change_results(cluster: Cluster, name: str, key: str) -> None:
    sentence = cluster.patch_refused(name, annotated(key, "other"), user=USER)
    assert f"{key} is managed by gpushare: leave it unchanged" in sentence


@pytest.mark.parametrize("key", [contract.ALLOCATION, contract.NODE, contract.GPU_UUIDS])
def test_even_administrators_cannot_remove_results(cluster: Cluster, key: str) -> None:
    assert f"{key} is managed by gpushare" in cluster.patch_refused("placed", annotated(key, None))


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("plain", contract.REQUEST, "0.1", "exists"),
        ("plain", contract.MEMORY + ".main", "1Gi", "exists"),
        ("gated", contract.REQUEST, "0.1", "waits for a GPU"),
        ("gated", contract.LIMIT + ".main", "0.7", "waits for a GPU"),
        ("plain", contract.NO_EVICT, "true", "exists"),
        ("placed", contract.MODEL, "x", "exists"),
        ("placed", contract.GPUS, "2", "exists"),
        ("placed", contract.GPUS + ".main", "2", "exists"),
        ("placed", contract.REQUEST + "s", "0.5", "exists"),
    ],
)
def test_only_the_amounts_of_a_request_can_be_changed(
    cluster: Cluster, name: str, key: str, value: str, said: str
) -> None:
    sentence = cluster.patch_refused(name, annotated(key, value), user=USER)
    assert f"{key} cannot be changed on a pod that {said}" in sentence


@pytest.mark.parametrize("key", [*contract.RESIZABLE_KEYS, *(f"{key}.main" for key in contract.RESIZABLE_KEYS)])
def test_the_amounts_of_a_placed_pod_can_be_changed(cluster: Cluster, key: str) -> None:
    for value in ("50%", "1%" if key.startswith(contract.MEMORY) else "0%", "100%"):
        cluster.patch("placed", annotated(key, value), user=USER)
    cluster.patch("placed", annotated(contract.REQUEST, "0.5"), user=USER)
    if key != contract.REQUEST:
        cluster.patch("placed", annotated(key, None), user=USER)


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        (contract.REQUEST, "2", 'is not a part of a GPU: write "0.5", "50%" or "500m", from 0 to 1 in steps of 0.01'),
        (contract.LIMIT + ".main", "half", "is not a part of a GPU"),
        (contract.REQUEST, "0.505", "is not a part of a GPU"),
        (contract.MEMORY, "8GB", 'is not an amount of memory: write bytes such as "8Gi"'),
        (contract.MEMORY + ".main", "101%", "is not an amount of memory"),
        (contract.MEMORY, "", "is not an amount of memory"),
        *(
            (f"{contract.MEMORY}{suffix}", value, 'is less than 1Mi of memory: write the unit, such as "8Gi"')
            for suffix in ("", ".main")
            for value in ("8", "0", "8192", "1048575", ".5", "1e3", "1023Ki", "0.9Mi", "500m", "0%", "000%")
        ),
    ],
)
def test_an_invalid_amount_is_denied_with_key_value_and_remedy(
    cluster: Cluster, key: str, value: str, remedy: str
) -> None:
    sentence = cluster.patch_refused("placed", annotated(key, value), user=USER)
    assert f'{key} "{value}" {remedy}' in sentence


@pytest.mark.parametrize("name", ["placed", "gated"])
def test_the_movable_annotation_can_be_changed_at_any_time(cluster: Cluster, name: str) -> None:
    for value in ("true", "false", None):
        cluster.patch(name, annotated(contract.NO_EVICT, value), user=USER)
    sentence = cluster.patch_refused(name, annotated(contract.NO_EVICT, "maybe"), user=USER)
    assert f'{contract.NO_EVICT} "maybe" is neither "true" nor "false"' in sentence


def test_a_request_cannot_be_removed(cluster: Cluster) -> None:
    sentence = cluster.patch_refused("placed", annotated(contract.REQUEST, None), user=USER)
    assert f"{contract.REQUEST} cannot be removed, because the pod would no longer request a share" in sentence


@pytest.mark.parametrize("value", ["1Mi", "1048576", "1024Ki", "1e9", ".5Gi", "1%", "100%"])
def test_valid_memory_quantities_are_accepted(cluster: Cluster, value: str) -> None:
    cluster.patch("placed", annotated(contract.MEMORY, value), user=USER)
    cluster.patch("placed", annotated(contract.MEMORY, None), user=USER)


@pytest.mark.parametrize("suffix", ["", ".main"])
def test_removing_a_key_cannot_drop_guaranteed_compute(cluster: Cluster, suffix: str) -> None:
    request, memory = contract.REQUEST + suffix, contract.MEMORY + suffix
    for key, value in ((request, "0.5"), (memory, "2Gi")):
        cluster.patch("placed", annotated(key, value), user=USER)
    sentence = cluster.patch_refused("placed", annotated(request, None), user=USER)
    assert f'{request} cannot be removed, because the pod would lose its guaranteed compute: write "0"' in sentence
    cluster.patch("placed", annotated(request, "0"), user=USER)
    cluster.patch("placed", annotated(request, "0.5"), user=USER)
    cluster.patch("placed", annotated(memory, None), user=USER)
    if suffix:
        cluster.patch("placed", annotated(request, None), user=USER)


def test_the_status_subresource_cannot_bypass_the_policy(cluster: Cluster) -> None:
    sentence = cluster.patch_refused("placed/status", annotated(contract.NODE, "other"), user=USER)
    assert f"{contract.NODE} is managed by gpushare" in sentence
    cluster.patch("placed/status", {"status": {"message": "as the kubelet does"}}, user=USER)


@pytest.mark.parametrize("written", [{"annotations": {contract.NODE: "x"}}, {"labels": {contract.SHARE_LABEL: "x"}}])
def test_a_binding_cannot_bypass_the_policy(cluster: Cluster, written: dict[str, Any]) -> None:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "placed", **written},
        "target": {"kind": "Node", "name": "other"},
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/placed/binding"
    with pytest.raises(lab_errors.LabError, match=r"Bindings cannot have gpushare\.io"):
        cluster.administrator.create(path, binding, user=USER)


@pytest.mark.parametrize(("name", "value"), [("placed", None), ("placed", "false"), ("plain", "true")])
def test_the_label_cannot_be_changed(cluster: Cluster, name: str, value: str | None) -> None:
    sentence = cluster.patch_refused(name, {"metadata": {"labels": {contract.SHARE_LABEL: value}}}, user=USER)
    assert "the label gpushare.io/share is managed by gpushare" in sentence


UNGATE = [
    {"op": "add", "path": f"/metadata/annotations/{contract.NODE.replace('/', '~1')}", "value": "n1"},
    {"op": "remove", "path": "/spec/schedulingGates"},
]


def test_only_the_webhook_removes_the_gate(cluster: Cluster) -> None:
    sentence = cluster.patch_refused("gated", UNGATE[1:], user=USER)
    assert "the scheduling gate gpushare.io/placement is managed by gpushare" in sentence
    cluster.create(pod("opened", labels=MUTATED, gated=True, request="0.5", reason="no GPU fits"), user=USER)
    opened = cluster.patch("opened", UNGATE, user=WEBHOOK)
    assert opened["metadata"]["annotations"][contract.NODE] == "n1"
    assert "schedulingGates" not in opened["spec"]


def test_other_fields_of_a_pod_can_be_changed(cluster: Cluster) -> None:
    for name in ("plain", "placed", "gated"):
        cluster.patch(name, annotated("example.com/note", "hello"), user=USER)
        cluster.patch(name, {"metadata": {"labels": {"tier": "a"}}}, user=USER)
    ordinary = pod("ordinary", labels={"app": "x"})
    ordinary["metadata"]["annotations"] = {"gpushare.io.example.com/request": "0.5", "example.com/gpushare.io": "y"}
    ordinary["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}
    cluster.create(ordinary, user=USER)
    in_namespace = f"--namespace={cluster.namespace}"
    cluster.kubectl("delete", "pod", "ordinary", in_namespace, "--grace-period=0", "--force", f"--as={USER}")


@pytest.mark.parametrize(("value", "is_refused"), [("all", True), ("0", True), ("void", False), ("", False)])
def test_an_ephemeral_container_cannot_get_a_gpu(cluster: Cluster, value: str, is_refused: bool) -> None:
    env = [{"name": contract.ENV_VISIBLE_DEVICES, "value": value}]
    patch: Any = {"spec": {"ephemeralContainers": [{"name": f"debug-{value or 'empty'}", "image": "x", "env": env}]}}
    tried: Any = {"query": "/ephemeralcontainers?dryRun=All"}
    if is_refused:
        assert "ephemeral containers of a pod with a share cannot use a GPU" in cluster.patch_refused(
            "placed", patch, **tried
        )
    else:
        cluster.patch("placed", patch, **tried)
    cluster.patch("plain", patch, **tried)
