"""The pods that the API server sends to the webhook. No webhook runs, so exactly those fail."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import contract
from gpushare.syntaxes.translation import SYNTAXES
from lab import lab_errors
from tests import builders
from tests.config import manifests
from tests.config.conftest import Cluster, matching_no_pod
from tests.gpushare.syntaxes import equivalents

pytestmark = pytest.mark.apiserver

WAIT_SECONDS = 30.0
CALLED = f'failed calling webhook "{contract.WEBHOOK_NAME}"'


@pytest.fixture(scope="module")
def registered(installed: Cluster) -> Iterator[Cluster]:
    """The MutatingWebhookConfiguration is in force, and its URL leads nowhere."""
    flag = f"--filename={manifests.CONFIG / 'base/admission/configuration.yaml'}"
    installed.kubectl("apply", "--server-side", "--force-conflicts", flag)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while CALLED not in installed.refused(builders.pod(namespace=installed.namespace, request="1"), dry_run=True):
            assert time.monotonic() < deadline, f"the webhook is not called after {WAIT_SECONDS} s"
            time.sleep(0.1)
        yield installed
    finally:
        installed.kubectl("delete", flag)


@pytest.mark.parametrize("key", [*contract.SHARE_KEYS, *(f"{key}.main" for key in contract.PER_CONTAINER_KEYS)])
def test_requesting_pods_are_sent_to_the_webhook(registered: Cluster, key: str) -> None:
    asks = {key.removeprefix(contract.PREFIX): "1"}
    manifest = builders.pod("asks", namespace=registered.namespace, **asks)
    assert CALLED in registered.refused(manifest, dry_run=True)


@pytest.mark.parametrize("key", ["example.com/note", "gpushare.io.example.com/request", "requests.gpushare/io"])
def test_other_pods_are_not_sent_to_the_webhook(registered: Cluster, key: str) -> None:
    manifest = builders.pod("asks-nothing", namespace=registered.namespace)
    registered.create(manifest, dry_run=True)
    manifest["metadata"]["annotations"] = {key: "1"}
    registered.create(manifest, dry_run=True)


@pytest.mark.parametrize("key", [contract.MODEL, contract.REQUEST + "s", contract.NODE])
def test_pods_with_only_secondary_keys_are_not_sent_to_the_webhook(registered: Cluster, key: str) -> None:
    manifest = builders.pod("asks-nothing", namespace=registered.namespace, **{key.removeprefix(contract.PREFIX): "1"})
    sentence = registered.refused(manifest, dry_run=True)
    assert CALLED not in sentence
    assert "gpushare-pods" in sentence


@pytest.mark.parametrize("namespace", ["kube-system", contract.SYSTEM_NAMESPACE])
def test_pods_in_excluded_namespaces_are_not_sent_to_the_webhook(registered: Cluster, namespace: str) -> None:
    manifest = json.dumps(builders.pod("asks", namespace=namespace, request="1"))
    with pytest.raises(lab_errors.LabError) as caught:
        registered.kubectl("create", "--filename=-", "--dry-run=server", input=manifest)
    assert CALLED not in str(caught.value)


@pytest.fixture(scope="module")
def understanding(registered: Cluster) -> Iterator[str]:
    """Return the path of the pods of a namespace that understands every syntax."""
    labels = {f"{contract.UNDERSTAND_PREFIX}{name}": "true" for name in SYNTAXES}
    with registered.administrator.namespace() as namespace:
        registered.administrator.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
        yield f"/api/v1/namespaces/{namespace}/pods"


def called(cluster: Cluster, path: str, manifest: dict[str, Any]) -> str:
    """Return the name of the webhook that the API server calls for a pod; empty for none."""
    try:
        cluster.administrator.create(path, manifest, dry_run=True)
    except lab_errors.LabError as error:
        found = re.search(r'failed calling webhook "([^"]+)"', str(error))
        return found[1] if found else ""
    return ""


def test_pods_in_another_syntax_are_sent_to_its_webhook(registered: Cluster, understanding: str) -> None:
    for syntax, theirs, _ in equivalents.rows():
        manifest = equivalents.pod_with(syntax, equivalents.pairs(theirs))
        assert called(registered, understanding, manifest) == f"{syntax.name}{contract.SYNTAX_WEBHOOK_SUFFIX}", theirs
        elsewhere = f"/api/v1/namespaces/{registered.namespace}/pods"
        assert called(registered, elsewhere, manifest) == "", theirs


def test_pods_without_another_syntax_are_not_sent_to_its_webhook(registered: Cluster, understanding: str) -> None:
    for manifest in equivalents.without():
        assert called(registered, understanding, manifest) == "", manifest
    asks = builders.pod(request="1")
    del asks["metadata"]["namespace"]
    assert called(registered, understanding, asks) == contract.WEBHOOK_NAME


def test_an_upgrade_puts_the_webhooks_of_other_syntaxes_first(installed: Cluster) -> None:
    configuration = matching_no_pod() | {"metadata": {"name": "gpushare-order"}}
    apply = ("apply", "--server-side", "--filename=-")
    installed.kubectl(*apply, input=json.dumps(configuration | {"webhooks": configuration["webhooks"][-1:]}))
    try:
        installed.kubectl(*apply, input=json.dumps(configuration))
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpushare-order"
        names = [hook["name"] for hook in installed.administrator.read(path)["webhooks"]]
    finally:
        installed.kubectl("delete", "mutatingwebhookconfiguration", "gpushare-order")
    assert names == [hook["name"] for hook in configuration["webhooks"]]
