"""A namespace under the restricted Pod Security Standard: shares need nothing that the standard forbids."""

from __future__ import annotations

import pytest

from gpushare import contract
from lab import lab_errors
from tests import builders
from tests.webhook.conftest import Cluster

pytestmark = pytest.mark.apiserver

STANDARD = "pod-security.kubernetes.io/enforce=restricted"
OF_POD = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
OF_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_pods_with_shares_are_placed_and_gated_there_and_hostpath_is_refused(cluster: Cluster) -> None:
    cluster.start()
    cluster.kubectl("label", "namespace", cluster.namespace, STANDARD)
    for name, request, gpus, create in (
        ("placed", "0.5", "1", cluster.create_placed),
        ("gated", "1", "4", cluster.create),
    ):
        manifest = builders.pod(name, request=request, gpus=gpus)
        manifest["spec"]["securityContext"] = OF_POD
        manifest["spec"]["containers"][0]["securityContext"] = OF_CONTAINER
        made = create(manifest)
    assert {"name": contract.SCHEDULING_GATE} in made["spec"]["schedulingGates"]
    manifest["metadata"]["name"] = "intruder"
    manifest["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": "/run/gpushare"}}]
    with pytest.raises(lab_errors.LabError, match="hostPath"):
        cluster.create(manifest)
