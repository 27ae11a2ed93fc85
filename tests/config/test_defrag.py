"""The component `defrag`: the plugin takes its arguments, and its pods keep to the restricted standard."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract
from kubectl_gpushare.commands import defrag
from lab import access
from tests import rights
from tests.config import manifests

(CRON_JOB,) = manifests.documents(manifests.CONFIG / "components" / "defrag" / "cronjob.yaml")
TEMPLATE: dict[str, Any] = CRON_JOB["spec"]["jobTemplate"]["spec"]["template"]


def test_the_plugin_takes_its_arguments() -> None:
    (container,) = TEMPLATE["spec"]["containers"]
    verb, *arguments = container["args"]
    assert verb == "defrag"
    parsed = defrag.command.make_context(verb, arguments).params
    assert (parsed["is_applied"], parsed["moves"]) == (True, 5)


def test_a_run_ends_before_the_next_and_is_not_repeated() -> None:
    spec = CRON_JOB["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0
    # Each move takes two minutes at most, and so does each waiting pod.
    assert 2 * 120 * 5 < spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] < 3600
    assert TEMPLATE["spec"]["serviceAccountName"] == rights.DEFRAG


@pytest.mark.apiserver
def test_its_pods_keep_to_the_restricted_standard(api_server: access.Access) -> None:
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    spec = {key: value for key, value in TEMPLATE["spec"].items() if key != "serviceAccountName"}
    with api_server.namespace("restricted") as namespace:
        api_server.patch(f"/api/v1/namespaces/{namespace}", enforced)
        api_server.ensure_default_service_account(namespace)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": contract.GROUP_NAME}, "spec": spec}
        assert api_server.create(f"/api/v1/namespaces/{namespace}/pods", pod, dry_run=True)["spec"]["containers"]
