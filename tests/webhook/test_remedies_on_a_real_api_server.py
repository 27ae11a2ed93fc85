"""The commands in docs/operations.md do what it says."""

from __future__ import annotations

import json

import pytest

from gpushare import contract
from tests import builders
from tests.docs import pages
from tests.webhook.conftest import BASE, Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

TYPED = {line for block in pages.blocks() if block.page == "docs/operations.md" for line in pages.lines(block)}


def test_documented_commands_recreate_the_certificates(cluster: Cluster) -> None:
    remedy = f"kubectl -n {contract.SYSTEM_NAMESPACE} delete secret {contract.CERTIFICATE_SECRET}"
    again = "kubectl apply --server-side -f config/base/certificates/secret.yaml"
    assert {remedy, again} <= TYPED
    old = cluster.start()
    read = ("get", "mutatingwebhookconfiguration", contract.WEBHOOK_CONFIGURATION, "-o", "json")
    before = json.loads(cluster.kubectl(*read))["webhooks"][0]["clientConfig"]["caBundle"]
    cluster.kubectl(*remedy.split()[1:])
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(BASE / "certificates" / "secret.yaml"))
    cluster.start()  # as the restart of the deployment does
    cluster.front.ports.remove(old.port)
    old.kill()
    until(cluster.is_registered, cluster.explain)  # before, the old one may have answered by what is gone
    after = json.loads(cluster.kubectl(*read))["webhooks"][0]["clientConfig"]["caBundle"]
    assert before not in after
    cluster.create_placed(builders.pod("after", request="0.5"))


def test_leftovers_of_an_agent_are_removed(cluster: Cluster) -> None:
    patch = {"status": {"capacity": {contract.RESOURCE_MEMORY: "80Gi"}}}
    status = ("patch", "node", "node-a", "--subresource=status")
    cluster.kubectl(*status, "--type=merge", "-p", json.dumps(patch))
    (typed,) = [line for line in TYPED if line.startswith("kubectl patch node")]
    removal = typed.rpartition("-p ")[2].strip("'")
    cluster.kubectl(*status, "--type=json", "-p", removal)
    capacity = json.loads(cluster.kubectl("get", "node", "node-a", "-o", "json"))["status"].get("capacity", {})
    assert contract.RESOURCE_MEMORY not in capacity
