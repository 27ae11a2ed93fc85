"""Uninstalling does not affect running pods, as docs/operations.md states."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import contract
from lab import access, build, cluster, gpushare, lab_layout
from tests.chart.conftest import CHART, Helm
from tests.e2e.observation import Observer, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = pytest.mark.lab(own=True)


@pytest.fixture
def own() -> Iterator[tuple[access.Access, lab_layout.Layout]]:
    """A separate lab without gpushare, because uninstalling would remove what other tests installed."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=1, owner=os.getpid())
            where = lab_layout.load(directory)
            gpushare.prepare(where)
            yield administrator, where
        finally:
            cluster.down(directory)


def told_images(administrator: access.Access) -> str:
    return str([node["status"].get("images") for node in administrator.read("/api/v1/nodes")["items"]])


def script(administrator: access.Access, *flags: str) -> str:
    """Run install.sh, which must succeed; return its output."""
    path = f"{administrator.kubectl_program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(administrator.kubeconfig), "PATH": path}
    command = ["./install.sh", *flags]
    done = subprocess.run(
        command, cwd=gpushare.REPOSITORY, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_helm(administrator: access.Access, *arguments: str) -> None:
    scope = f"--namespace={contract.SYSTEM_NAMESPACE}"
    Helm(build.tool("helm4"), administrator.kubeconfig).text(*arguments, scope)


@pytest.mark.timeout(900)
def test_a_running_pod_keeps_its_share_across_reinstallations(
    own: tuple[access.Access, lab_layout.Layout],
) -> None:
    administrator, _ = own
    with administrator.namespace("e2e") as namespace:
        user = Observer(administrator, namespace)
        install = ("install", "gpushare", str(CHART), "--wait", "--timeout=240s")
        administrator.kubectl("create", "namespace", contract.SYSTEM_NAMESPACE)
        by_helm(administrator, *install)
        held = sleeper("holder", request="0.25")
        held["spec"]["containers"][0]["command"] = ["gpushare-probe", "--allocate", "1GiB", "--hold", "3600"]  # type: ignore[index]
        user.apply(held)
        before = user.running("holder")
        user.ledger_is_confirmed()
        shares = user.gpunode().allocations[0].shares

        def check_share() -> None:
            eventually(lambda: "1Gi" in user.plugin("top", "--no-headers").splitlines()[0], what="used figures in top")
            after = user.running("holder")
            assert after["metadata"]["uid"] == before["metadata"]["uid"]
            assert after["status"]["containerStatuses"][0]["restartCount"] == 0
            assert user.gpunode().allocations[0].shares == shares
            assert user.inside("holder", "gpushare-probe")

        def is_gone() -> None:
            system = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/pods"
            eventually(lambda: not administrator.read(system)["items"], seconds=60, what="gpushare's pods gone")
            assert "CUDA_ERROR_SYSTEM_NOT_READY" in user.inside("holder", "sh", "-c", "! gpushare-probe 2>&1")

        check_share()
        by_helm(administrator, "uninstall", "gpushare")
        is_gone()

        # Its check before the installation uses the kubelet's list of images, which is updated twice a minute.
        eventually(lambda: "gpushare/agent" in told_images(administrator), what="told by the kubelet", seconds=90)
        said = script(administrator)
        assert "Installed. Next:" in said
        check_share()
        assert f"{namespace}" in script(administrator, "--uninstall", "--dry-run")
        check_share()
        assert "The ledger stays" in script(administrator, "--uninstall")
        is_gone()
