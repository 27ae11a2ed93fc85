"""A stopped agent, as docs/operations.md has it, and a failed GPU, as the page of `kubectl gpushare ui` shows it."""

from __future__ import annotations

import subprocess

import pytest
from playwright.sync_api import expect

from gpushare import contract
from lab import access, gpushare, lab_layout
from tests.e2e.observation import Observer, annotation, eventually
from tests.e2e.test_life_of_a_pod import sleeper
from tests.kubectl_gpushare.ui import chromium
from tests.kubectl_gpushare.ui.chromium import tile

LOOK_MILLISECONDS = 90_000.0  # until the page has read the pods again on a busy machine

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


def test_the_page_shows_a_gpu_that_fails_and_a_queue_that_drains(
    user: Observer, installed: lab_layout.Layout, lab: access.Access
) -> None:
    (node,) = installed.nodes
    name = f"{node.name}/1"

    def simgpu(verb: str, *failure: str) -> None:
        subprocess.run([gpushare.DRIVER / "simgpu", verb, installed.gpus(node), "1", *failure], check=True)

    for number in range(4):
        user.apply(sleeper(f"holds-{number}", request="0.6", memory="20Gi"))
    with user.page() as address, chromium.launched() as browser:
        expect.set_options(timeout=LOOK_MILLISECONDS)
        page = browser.new_page()
        page.goto(address)
        expect(tile(page, name)).to_contain_text("fits 0.4 + 20Gi")
        simgpu("fail", "lost")
        try:
            expect(tile(page, name)).to_contain_text("Unhealthy")
            expect(tile(page, name)).to_contain_text("it does not answer")
            user.apply(sleeper("waits", request="0.7", memory="20Gi"))
            entry = page.get_by_role("button", name=f"{user.namespace}/waits")
            expect(entry).to_contain_text("1 unhealthy, 3 with too little compute free")
            entry.click()
            expect(page.locator(".tile.lit").first).to_contain_text("has 0.4 of its compute free")
        finally:
            simgpu("heal")
        expect(tile(page, name)).to_contain_text("fits 0.4 + 20Gi")
        user.delete("pod", "holds-0")
        expect(page.get_by_text("No pod waits for a GPU.")).to_be_visible()
        expect(page.locator(f'.compute [data-pod="{user.namespace}/waits"]')).to_be_visible()
        expect(page.locator(".tile.lit")).to_have_count(0)
        page.keyboard.press("h")
        expect(page.locator(".changes")).to_contain_text("GpuUnhealthy")
    user.delete("pods", "--all")
    user.ledger_is_empty()
