"""Manifests of other sharers, unchanged, on a real API server with a real webhook."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_client
from lab import lab_errors
from tests import builders
from tests.webhook import other_webhook
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

MANIFESTS = Path(__file__).parent / "moving_in"


def understand(cluster: Cluster, *syntaxes: str) -> None:
    """Label the namespace, and wait until the API server calls the webhooks, which it learns from a watch."""
    labels = {f"{contract.UNDERSTAND_PREFIX}{name}": "true" for name in syntaxes}
    cluster.administrator.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": labels}})
    probes = {"hami": {"nvidia.com/gpumem": "1000"}, "kai": {"gpu-fraction": "0.01"}}
    for name in syntaxes:
        until(lambda name=name: _is_translated(cluster, probes[name]), cluster.explain)  # type: ignore[misc]
    for started in cluster.replicas:
        started.count_from_here()


def _is_translated(cluster: Cluster, asked: dict[str, str]) -> bool:
    manifest = asking({key: value for key, value in asked.items() if key.startswith("nvidia.com/")})
    manifest["metadata"]["annotations"] = {key: value for key, value in asked.items() if key == "gpu-fraction"}
    try:
        planned = cluster.create(manifest, dry_run=True)
    except lab_errors.LabError:
        return False
    return contract.PREFIX in str(planned["metadata"]["annotations"])


def asking(limits: dict[str, str], **metadata: Any) -> dict[str, Any]:
    manifest = builders.pod("asks")
    manifest["metadata"] = {"name": "asks", **metadata}
    if limits:
        manifest["spec"]["containers"][0]["resources"] = {"limits": limits}
    return manifest


def create(cluster: Cluster, name: str) -> str:
    """Create what is in a file, as a user does; return the warnings."""
    program = (str(cluster.administrator.kubectl_program), f"--kubeconfig={cluster.administrator.kubeconfig}")
    command = (*program, "create", f"--namespace={cluster.namespace}", f"--filename={MANIFESTS / name}")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def placed(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return a pod once it has a share: it may wait until the placer has seen the others."""
    until(lambda: contract.ALLOCATION in cluster.pod(name)["metadata"]["annotations"], cluster.explain)
    return cluster.pod(name)


def test_manifests_of_hami_and_kai_get_shares_unchanged(cluster: Cluster) -> None:
    started = cluster.start()
    understand(cluster, "hami", "kai")

    warnings = create(cluster, "hami.yaml")
    assert 'Warning: HAMi\'s syntax is understood as gpushare.io/request: "0.3", gpushare.io/limit: "0.3"' in warnings
    stored = placed(cluster, "gpu-pod")
    annotations = stored["metadata"]["annotations"]
    assert {key: text for key, text in annotations.items() if key in contract.REQUEST_KEYS} == {
        contract.REQUEST: "0.3",
        contract.LIMIT: "0.3",
        contract.MEMORY: "3000Mi",
        contract.MODEL: "*A100*, *V100*",
        contract.POLICY: "pack",
    }
    assert all(key.startswith(contract.PREFIX) for key in annotations)
    amounts = {contract.RESOURCE_PERCENT: "30", contract.RESOURCE_MEMORY: "3000Mi"}
    assert stored["spec"]["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert stored["metadata"]["labels"][contract.SHARE_LABEL] == contract.SHARE_LABEL_VALUE

    assert 'understood as gpushare.io/request: "0.5", gpushare.io/container: "gpu-workload"' in create(
        cluster, "kai.yaml"
    )
    stored = placed(cluster, "gpu-sharing-non-default")
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert "gpu-fraction" not in stored["metadata"]["annotations"]
    sidecar, workload = stored["spec"]["containers"]
    assert workload["resources"]["limits"] == {contract.RESOURCE_PERCENT: "50"}
    assert not sidecar.get("resources", {}).get("limits")
    reviews = started.reviews()
    assert reviews["translated"] == 2  # and each was then reviewed like any pod that asks for a share
    assert sum(reviews.values()) == 4
    until(lambda: cluster.is_settled() and len(cluster.node().allocations) == 2, cluster.explain)
    _refuses_what_has_no_equivalent(cluster)
    _keeps_quotas(cluster)
    _leaves_other_namespaces_alone(cluster)


def _refuses_what_has_no_equivalent(cluster: Cluster) -> None:
    both = {"nvidia.com/gpumem": "3000", "nvidia.com/gpumem-percentage": "50"}
    assert cluster.refuses(
        asking(both),
        '"hami.syntaxes.gpushare.io" denied the request: nvidia.com/gpumem "3000" of container "main" cannot be '
        "combined with nvidia.com/gpumem-percentage: remove one",
    )
    two = asking({"nvidia.com/gpumem": "3000"}, annotations={"gpu-fraction": "0.5"})
    assert cluster.refuses(two, "is HAMi's syntax and gpu-fraction is KAI's: a pod can use only one")
    own = asking({"nvidia.com/gpumem": "3000"}, annotations={contract.REQUEST: "0.5"})
    assert cluster.refuses(own, "both ask for a share: remove one")
    # A translated request is then validated like any other.
    privileged = asking({"nvidia.com/gpumem": "3000"})
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert cluster.refuses(privileged, 'container "main" is privileged')
    forged = asking({"nvidia.com/gpumem": "3000"}, annotations={contract.ALLOCATION: "forged"})
    stored = cluster.create_placed(forged)
    assert stored["metadata"]["annotations"][contract.ALLOCATION] != "forged"


def _keeps_quotas(cluster: Cluster) -> None:
    quota = {"metadata": {"name": "old"}, "spec": {"hard": {"requests.nvidia.com/gpumem": "0"}}}
    cluster.administrator.create(f"{cluster.path}/resourcequotas", quota)
    said = "the ResourceQuota old of its namespace counts nvidia.com/gpumem, which a pod with a share does not request"
    until(lambda: cluster.refuses(asking({"nvidia.com/gpumem": "3000"}), said), cluster.explain)
    cluster.administrator.delete(f"{cluster.path}/resourcequotas/old")
    until(lambda: not cluster.refuses(asking({"nvidia.com/gpumem": "3000"}), said), cluster.explain)


def _leaves_other_namespaces_alone(cluster: Cluster) -> None:
    with cluster.administrator.namespace() as other:
        path = f"/api/v1/namespaces/{other}/pods"
        manifest = asking({"nvidia.com/gpumem": "3000"})
        elsewhere = cluster.administrator.create(path, manifest, dry_run=True)
    assert elsewhere["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpumem": "3k"}


async def test_a_translated_pod_keeps_its_share_and_is_refused_without_a_webhook(
    cluster: Cluster, tmp_path: Path
) -> None:
    started = cluster.start()
    understand(cluster, "kai")
    async with (
        other_webhook.running(cluster, other_webhook.inject, tmp_path / "other"),
        api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api,
    ):
        manifest = asking({}, annotations={"gpu-fraction": "0.5"})
        stored = json.loads(json.dumps(await api.create(f"{cluster.path}/pods", manifest)))
    assert [container["name"] for container in stored["spec"]["containers"]] == ["main", "injected"]
    assert stored["metadata"]["annotations"][contract.REQUEST] == "0.5"
    reviews = started.reviews()
    # In the second round, the pod is not in KAI's syntax any more.
    assert reviews == {"translated": 1, "placed": 1, "kept": 1} or "gated" in reviews
    until(lambda: cluster.is_settled() and len(cluster.node().allocations) == 1, cluster.explain)

    # Without a webhook, no such pod starts unshared.
    started.kill()
    sentence = 'failed calling webhook "kai.syntaxes.gpushare.io"'
    assert cluster.refuses(asking({}, annotations={"gpu-fraction": "0.5"}), sentence)
    plain = builders.pod("plain")
    del plain["metadata"]["annotations"]
    cluster.create(plain, dry_run=True)
