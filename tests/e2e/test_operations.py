"""A stopped agent, as docs/operations.md has it."""

from __future__ import annotations

import pytest

from gpushare import contract
from lab import access, gpushare, lab_layout
from tests.e2e.observation import Observer, annotation, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = pytest.mark.lab


def test_a_pod_waits_while_the_only_nodes_agent_is_down(
    user: Observer, installed: lab_layout.Layout, lab: access.Access
) -> None:
    user.apply(sleeper("early", request="0.25"))
    user.running("early")
    user.ledger_is_confirmed()
    asks = ("run", "probe", "--image=x", f"--annotations={contract.REQUEST}=0.25", "--dry-run=server", "-o", "yaml")
    with gpushare.without_agent(installed, installed.nodes[0], lab):
        # The kubelet removes the resource from the Node, and the webhook watches Nodes.
        eventually(lambda: contract.SCHEDULING_GATE in user.kubectl(*asks), what="known to the webhook")
        user.apply(sleeper("late", request="0.25"))
        late = user.pod("late")
        assert late is not None
        said = annotation(late, contract.REASON) or ""
        # Either the agent's last report, if it had time for one, or what the kubelet offers.
        kubelets = f"no running agent: its kubelet offers no {contract.RESOURCE_PERCENT}"
        assert "the node's agent has stopped" in said or kubelets in said
        # As on a node that an autoscaler has just started; the agent removes it, or no pod would run here again.
        lab.kubectl("taint", "node", installed.nodes[0].name, f"{contract.STARTUP_TAINTS[0]}=:NoSchedule")
    user.running("late")
    user.running("early")
    user.delete("pods", "--all")
    user.ledger_is_empty()
