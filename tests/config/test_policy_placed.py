"""Only pods that passed through the webhook may carry its results: the policy, tested without a webhook.

The MutatingWebhookConfiguration of these tests calls no webhook, so tests can write its results themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpushare import contract
from lab import lab_errors
from tests.config.conftest import USER, WAIT_SECONDS, Cluster, matching_no_pod
from tests.config.installation import apply, withdraw
from tests.config.test_policy_pods import MUTATED, pod

pytestmark = pytest.mark.apiserver


def forged(**more: str) -> dict[str, Any]:
    """Return every result that the webhook writes, written by a user."""
    annotations = {"request": "1", "allocation": "forged", "node": "n1", "gpu_uuids": "GPU-1", **more}
    return pod("forged", labels=MUTATED, **annotations)


def mirror(manifest: dict[str, Any]) -> dict[str, Any]:
    manifest["metadata"]["annotations"][contract.MIRROR_ANNOTATION] = "x"
    manifest["spec"]["nodeName"] = "n1"
    return manifest


def test_pods_changed_by_the_webhook_are_accepted(installed: Cluster) -> None:
    installed.create(forged(), user=USER, dry_run=True)


def test_a_mirror_pod_with_our_results_is_rejected(installed: Cluster) -> None:
    assert "which is not called for static pods" in installed.refused(mirror(forged()), user=USER, dry_run=True)
    without = mirror(forged())
    del without["metadata"]["labels"]
    assert "gpushare has not placed this pod" in installed.refused(without, user=USER, dry_run=True)


@pytest.mark.parametrize("namespace", contract.EXEMPT_NAMESPACES)
def test_pods_with_results_in_excluded_namespaces_are_rejected(installed: Cluster, namespace: str) -> None:
    sentence = installed.run_refused(
        "create", f"--namespace={namespace}", "--filename=-", "--dry-run=server", input=json.dumps(forged())
    )
    assert "which is not called for pods in this namespace" in sentence


def test_a_new_pod_with_a_held_annotation_is_rejected(installed: Cluster) -> None:
    assert "gpushare.io/held is managed by gpushare" in installed.refused(forged(held="[]"), user=USER, dry_run=True)


def test_a_result_that_quota_would_not_count_is_rejected(installed: Cluster) -> None:
    bare, none = forged(), forged()
    del bare["spec"]["containers"][0]["resources"]
    zero = {contract.RESOURCE_PERCENT: "0", contract.RESOURCE_IDLE: "0m", contract.RESOURCE_MEMORY: "0Gi"}
    none["spec"]["containers"][0]["resources"] = {"limits": zero, "requests": zero}
    for manifest in (bare, none):
        assert "must have gpushare.io resources" in installed.refused(manifest, user=USER, dry_run=True)


def test_a_placed_pod_with_a_foreign_gate_is_rejected(installed: Cluster) -> None:
    gated = forged()
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    sentence = installed.refused(gated, user=USER, dry_run=True)
    assert "the scheduling gate kueue.x-k8s.io/admission was added after gpushare placed the pod" in sentence


def test_a_placed_pod_must_be_pinned_to_its_node(installed: Cluster) -> None:
    loose = forged()
    loose["spec"]["nodeSelector"] = {"pool": "train"}
    assert "was removed by a webhook that is called after gpushare" in installed.refused(loose, user=USER, dry_run=True)


def configure(installed: Cluster, configuration: dict[str, Any] | None) -> None:
    if configuration is None:
        withdraw(installed.administrator, [matching_no_pod()])
    else:
        apply(installed.administrator, [configuration])


@pytest.fixture
def configure_webhook(installed: Cluster) -> Iterator[Callable[[dict[str, Any] | None], None]]:
    """Change the webhook's configuration for one test."""
    yield lambda configuration: configure(installed, configuration)
    configure(installed, matching_no_pod())
    until(lambda: passes(installed))


def passes(installed: Cluster) -> bool:
    try:
        installed.create(forged(), user=USER, dry_run=True)
    except lab_errors.LabError:
        return False
    return True


def until(there: Callable[[], bool]) -> None:
    """Wait until the API server applies a configuration, which is a moment after it stored it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not there():
        assert time.monotonic() < deadline, f"not so after {WAIT_SECONDS} s"
        time.sleep(0.1)


def refused(installed: Cluster, words: str) -> bool:
    try:
        installed.create(forged(), user=USER, dry_run=True)
    except lab_errors.LabError as error:
        return words in str(error)
    return False


Configures = Callable[[dict[str, Any] | None], None]


def test_without_a_webhook_only_pods_with_results_are_rejected(
    installed: Cluster, configure_webhook: Configures
) -> None:
    configure_webhook(None)
    until(lambda: refused(installed, "no params found"))
    installed.create(pod("plain-one"), user=USER, dry_run=True)


@pytest.mark.parametrize(
    "left_out",
    [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["NAMESPACE"]},
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["another"]},
        {"key": "gpushare", "operator": "Exists"},
        {"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"},
    ],
    ids=lambda expression: expression["operator"],
)
def test_a_namespace_excluded_by_an_administrator_gets_no_results(
    installed: Cluster, configure_webhook: Configures, left_out: dict[str, Any]
) -> None:
    values = [value.replace("NAMESPACE", installed.namespace) for value in left_out.get("values", [])]
    configuration = matching_no_pod()
    *_, hook = configuration["webhooks"]
    hook["namespaceSelector"]["matchExpressions"].append(left_out | ({"values": values} if values else {}))
    configure_webhook(configuration)
    until(lambda: refused(installed, "which is not called for pods in this namespace"))


def test_a_selector_that_matches_the_namespace_has_no_effect(installed: Cluster, configure_webhook: Configures) -> None:
    configuration = matching_no_pod()
    *_, hook = configuration["webhooks"]
    hook["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": "another"}
    configure_webhook(configuration)
    until(lambda: refused(installed, "which is not called for pods in this namespace"))
    hook["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": installed.namespace}
    configure_webhook(configuration)
    until(lambda: passes(installed))
