"""The policy for the webhook, against an attacker with its ServiceAccount."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpushare import contract
from lab import lab_errors
from tests.config.conftest import USER, WAIT_SECONDS, Cluster
from tests.config.test_policy_pods import MUTATED, WEBHOOK, pod

pytestmark = pytest.mark.apiserver

BY_IT: dict[str, str] = {"user": WEBHOOK, "query": "?dryRun=All"}


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Cluster:
    """The cluster with a placed pod, a pod gated by gpushare and another controller, and an unrelated pod."""
    installed.create(pod("other"), user=USER)
    annotations = {"request": "0.5", "allocation": "a1", "node": "n1", "gpu_uuids": "GPU-1"}
    installed.create(pod("was-placed", labels=MUTATED, **annotations), user=USER)
    waits = pod("waits", labels=MUTATED, gated=True, request="0.5", reason="no GPU fits")
    waits["spec"]["schedulingGates"].append({"name": "example.com/queue"})
    waits["spec"]["nodeSelector"] = {"tier": "gpu"}
    installed.create(waits, user=USER)
    deadline = time.monotonic() + WAIT_SECONDS
    while not _is_in_force(installed):  # the last policy that is applied
        assert time.monotonic() < deadline, f"gpushare-webhook is not in force after {WAIT_SECONDS} s"
        time.sleep(0.1)
    return installed


def _is_in_force(cluster: Cluster) -> bool:
    try:
        cluster.patch("other", noted(reason="x"), **BY_IT)
    except lab_errors.LabError as error:
        return "pods with the label" in str(error)
    return False


def noted(**annotations: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {contract.PREFIX + key.replace("_", "-"): v for key, v in annotations.items()}}}


PINNED = {
    **noted(allocation="a2", node="n1", gpu_uuids="GPU-1", hostname="n1.example", reason=None),
    "spec": {
        "nodeSelector": {contract.HOSTNAME_LABEL: "n1.example"},
        "schedulingGates": [{"name": "example.com/queue"}],
    },
}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("waits", noted(reason="no GPU has room")),
        ("waits", PINNED),
        ("was-placed", noted(reason="waits to be resized", held="[]")),
        ("was-placed", noted(reason=None, held=None)),
    ],
)
def test_the_webhooks_own_changes_are_allowed(cluster: Cluster, name: str, body: dict[str, Any]) -> None:
    cluster.patch(name, body, **BY_IT)


IMAGE = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
TOLERATION = [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}]


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("other", noted(reason="x"), "only pods with the label gpushare.io/share"),
        ("other", IMAGE, "only pods with the label gpushare.io/share"),
        ("was-placed", IMAGE, "may not change anything else in its spec"),
        ("waits", IMAGE, "may not change anything else in its spec"),
        ("was-placed", TOLERATION, "may not change anything else in its spec"),
        ("was-placed", {"spec": {"activeDeadlineSeconds": 1}}, "may not change anything else in its spec"),
        ("waits", {"spec": {"schedulingGates": []}}, "may not change anything else in its spec"),
        (
            "waits",
            {"spec": {"nodeSelector": {"tier": "gpu", "more": "x"}}},
            "only kubernetes.io/hostname in a node selector",
        ),
        ("was-placed", noted(request="1"), "only the annotations gpushare.io/reason and gpushare.io/held"),
        ("waits", noted(request="1"), "only the annotations gpushare.io/reason and gpushare.io/held"),
        ("was-placed", noted(allocation="a2"), "while the pod is gated, those of its placement"),
        ("was-placed", noted(node=None), "while the pod is gated, those of its placement"),
        (
            "waits",
            {"metadata": {"annotations": {"example.com/x": "y"}}},
            "only the annotations gpushare.io/reason and gpushare.io/held",
        ),
        ("was-placed", {"metadata": {"labels": {"app": "x"}}}, "may not change labels, finalizers or owners"),
        (
            "was-placed",
            {"metadata": {"labels": {contract.SHARE_LABEL: None}}},
            "may not change labels, finalizers or owners",
        ),
        (
            "was-placed",
            {"metadata": {"finalizers": ["example.com/stay"]}},
            "may not change labels, finalizers or owners",
        ),
        (
            "was-placed",
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "y"}]}},
            "may not change labels, finalizers or owners",
        ),
    ],
)
def test_other_changes_by_the_webhook_are_denied(
    cluster: Cluster, name: str, body: dict[str, Any] | list[dict[str, Any]], said: str
) -> None:
    assert said in cluster.patch_refused(name, body, **BY_IT)
