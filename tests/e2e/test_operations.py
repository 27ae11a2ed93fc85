"""What docs/operations.md says of an agent that is away, and of gpushare that is taken away: pods that run notice neither."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import contract
from lab import access, cluster, gpushare, layout, process
from tests.e2e.observation import Observer, annotation, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = pytest.mark.lab


def kill(where: layout.Layout, *names: str) -> None:
    """SIGKILL, by the recorded pids."""
    for name in names:
        pid = process.pid_of(name, where.processes)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda name=name: process.pid_of(name, where.processes) is None, what=f"{name} gone")  # type: ignore[misc]


def test_a_pod_waits_while_the_agent_of_the_only_node_is_away(
    user: Observer, installed: layout.Layout, lab: access.Access
) -> None:
    user.apply(sleeper("early", request="0.25"))
    user.running("early")
    user.ledger_is_confirmed()
    kill(installed, gpushare.agent_name(installed.nodes[0]))
    asks = ("run", "probe", "--image=x", f"--annotations={contract.REQUEST}=0.25", "--dry-run=server", "-o", "yaml")
    try:
        # The kubelet takes it out of what the Node offers, and the webhook watches Nodes.
        eventually(lambda: contract.SCHEDULING_GATE in user.kubectl(*asks), what="known to the webhook")
        user.apply(sleeper("late", request="0.25"))
        late = user.pod("late")
        assert late is not None
        assert f"has 0 of 0 {contract.RESOURCE_PERCENT} free" in (annotation(late, contract.REASON) or "")
    finally:  # whatever comes of it, others need the agent
        gpushare.install(installed, lab)
    user.running("late")
    user.running("early")
    user.delete("pods", "--all")
    user.ledger_is_empty()


@pytest.fixture
def own() -> Iterator[tuple[access.Access, layout.Layout]]:
    """A lab of its own: to uninstall is to take away what other tests have installed."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=1, owner=os.getpid())
            where = layout.load(directory)
            gpushare.install(where, administrator)
            yield administrator, where
        finally:
            cluster.down(directory)


def test_a_pod_that_runs_keeps_its_share_over_an_uninstallation(own: tuple[access.Access, layout.Layout]) -> None:
    administrator, where = own
    with administrator.namespace("e2e") as namespace:
        user = Observer(administrator, namespace)
        user.apply(sleeper("holder", request="0.25"))
        before = user.running("holder")
        user.ledger_is_confirmed()
        held = user.gpunode().allocations[0].shares
        done = subprocess.run(
            ["./install.sh", "--uninstall"],
            cwd=gpushare.REPOSITORY,
            env={
                **os.environ,
                "KUBECONFIG": str(administrator.kubeconfig),
                "PATH": f"{administrator.kubectl_program.parent}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        daemons = [gpushare.WEBHOOK, *map(gpushare.agent_name, where.nodes)]
        kill(where, *daemons)
        assert "CUDA_ERROR_SYSTEM_NOT_READY" in user.inside("holder", "sh", "-c", "gpushare-probe 2>&1 || true")
        administrator.kubectl("wait", "--for=delete", f"namespace/{contract.SYSTEM_NAMESPACE}", "--timeout=60s")
        for name in daemons:  # their ServiceAccounts went with the namespace
            (where.kubeconfigs / name).unlink()

        gpushare.install(where, administrator)
        found = eventually(lambda: user.gpunode().allocations, what="the share written again")
        assert found[0].shares == held
        after = user.running("holder")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0
        assert user.inside("holder", "gpushare-probe")
        user.delete("pods", "--all")
        user.ledger_is_empty()
