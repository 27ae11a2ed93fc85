"""The pods that the API server sends to the webhook. No webhook runs, so exactly those fail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from gpushare import contract
from lab import lab_errors
from tests import builders
from tests.config import manifests
from tests.config.conftest import Cluster

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
