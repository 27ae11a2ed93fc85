"""No right is superfluous: each is used during an installation's life, or in the test that the table names.

`tests/conftest.py` checks after every run with an API server that no right is missing.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpushare import contract
from lab import access, kubeconfig, lab_errors, lab_layout
from tests import rights
from tests.e2e.observation import Observer, annotation
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = pytest.mark.lab

# Rights that need more than a moment or a conflict: the test that causes it and checks the same audit log.
REPETITION = "tests/config/test_policy_events.py::test_agents_and_replicas_write_and_count_their_events"
ELSEWHERE: dict[tuple[str, str, str], str] = {
    (contract.WEBHOOK_SERVICE_ACCOUNT, "pods/eviction", "create"): (
        "tests/webhook/test_stuck_on_a_real_scheduler.py::test_scheduler_message_is_reported_and_owned_pod_moves"
    ),
    (contract.WEBHOOK_SERVICE_ACCOUNT, "pods", "get"): (
        "tests/webhook/test_lost_ledger_on_a_real_api_server.py::test_manually_emptied_allocations_are_restored"
    ),
    (contract.AGENT_SERVICE_ACCOUNT, "gpunodes.gpushare.io", "get"): (
        "tests/deviceplugin/test_gpunode_status_on_api_server.py::test_resizes_are_only_written_for_the_current_gpunode"
    ),
    (contract.WEBHOOK_SERVICE_ACCOUNT, "events.events.k8s.io", "patch"): REPETITION,
    (contract.AGENT_SERVICE_ACCOUNT, "events.events.k8s.io", "patch"): REPETITION,
}


def test_every_right_is_used(user: Observer, installed: lab_layout.Layout, lab: access.Access) -> None:
    (node,) = installed.nodes
    uuid = user.gpunode().gpus[0].uuid
    user.apply(sleeper("placed", request="1", uuid=uuid))
    user.apply(sleeper("gated", request="1", uuid=uuid))
    user.running("placed")
    user.delete("pod", "placed")
    assert annotation(user.running("gated"), contract.REASON) == ""
    path = f"/api/v1/nodes/{node.name}"
    lab.patch(path, {"metadata": {"labels": {contract.NODE_CONFIG_LABEL: "unheard-of"}}})
    try:
        for account in rights.ACCOUNTS:
            whole = rights.expected(rights.EVERYWHERE[account], rights.AT_HOME[account])
            here = {right for right in whole if (account, *right) not in ELSEWHERE}
            unused = here
            deadline = time.monotonic() + 30
            while unused and time.monotonic() < deadline:
                time.sleep(0.2)
                unused = here - rights.used_on(lab, account)
            assert not unused, account
    finally:
        lab.patch(path, {"metadata": {"labels": {contract.NODE_CONFIG_LABEL: None}}})


def test_an_agent_reads_only_its_nodes_pods_with_the_field_selector_authorizer(
    installed: lab_layout.Layout, lab: access.Access, tmp_path: Path
) -> None:
    (node,) = installed.nodes
    bound = ("--bound-object-kind=Node", f"--bound-object-name={node.name}", f"--namespace={contract.SYSTEM_NAMESPACE}")
    token = lab.kubectl("create", "token", contract.AGENT_SERVICE_ACCOUNT, *bound).strip()
    path = tmp_path / "kubeconfig"
    kubeconfig.write(path, kubeconfig.with_token(lab.server, lab.ca_file, token, contract.SYSTEM_NAMESPACE))
    agent = access.Access(path, lab.server, lab.ca_file, lab.kubectl_program)
    own = f"fieldSelector=spec.nodeName%3D{node.name}"
    for query in (own, f"{own},status.phase!%3DFailed"):
        assert agent.read(f"/api/v1/pods?{query}")["items"]
    for query in (
        "",
        "watch=true",
        "fieldSelector=spec.nodeName%3Danother",
        f"fieldSelector=spec.nodeName!%3D{node.name}",
    ):
        with pytest.raises(lab_errors.LabError, match="connection refused"):
            agent.read(f"/api/v1/pods?{query}")
    assert agent.read("/api/v1/nodes")["items"]  # its role allows that


def test_rights_used_elsewhere_exist_and_are_tested_there() -> None:
    for (account, what, verb), place in ELSEWHERE.items():
        assert (what, verb) in rights.expected(rights.EVERYWHERE[account], rights.AT_HOME[account])
        path, name = place.split("::")
        _, _, body = Path(path).read_text().partition(f"def {name}(")
        assert f'("{what}", "{verb}")' in body.partition("\ndef ")[0], place
