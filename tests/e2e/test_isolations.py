"""Kinds of isolation on a real node: shared by MPS and not limited, and whom a fault, a kill and a dead server hurt."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from deviceplugin.mps.shares import MAX_SERVER_FAILURES
from gpushare import contract
from gpushare.allocation import Isolation
from lab import access, gpushare, lab_layout
from tests.e2e.isolation_node import ALLOWED, Node, configured, node
from tests.e2e.observation import Observer, annotation, eventually

__all__ = ["configured", "node"]  # fixtures
pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

Away = Callable[[], contextlib.AbstractContextManager[None]]


def test_shares_by_mps_run_side_by_side_within_their_limits(node: Node) -> None:
    node.clients(("quarter", "works", 0, 25), ("half", "stays", 0, 50))
    node.goes_on("quarter")
    # By the GPU's clock, also if the program changes its environment, and while its neighbour works.
    for environment in ((), ("A=1",), ("CUDA_MPS_PIPE_DIRECTORY=/", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100")):
        for name, expected_ms in (("quarter", 200), ("half", 100)):
            is_client, took_ms = map(int, node.run(name, "sees", *environment).split())
            assert (is_client, took_ms) == (1, pytest.approx(expected_ms, abs=25)), (name, environment)
    eventually(lambda: node.limits_of("quarter", "half") == ["InForce", "Idle"], what="limits in force")
    assert node.audit()["processes"] == []


def test_kinds_do_not_meet_on_a_gpu(node: Node) -> None:
    node.create("free", "works", 1, isolation="none")
    node.client("client", "stays", 0)
    for gpu, kind, theirs in ((0, "none", "mps"), (0, "arbiter", "mps"), (1, "mps", "none")):
        node.create(f"{kind}-{gpu}", "stays", gpu, isolation=kind, limit="25%")
        assert f"has isolation {theirs}, not {kind}" in node.reason(f"{kind}-{gpu}")
    node.create("elsewhere", "stays", 3, isolation="mps", limit="25%")
    assert "1 without that isolation" in node.reason("elsewhere")
    node.create("auto", "stays", None, isolation="auto", limit="25%")
    node.create("burst", "stays", None, isolation="auto", limit="100%")
    for name, kind in (("auto", "mps"), ("burst", "arbiter")):
        assert (annotation(node.user.running(name), contract.ISOLATION_GIVEN) or "arbiter") == kind
    assert "mps: " in node.user.plugin("why", "auto", f"--namespace={node.user.namespace}")
    assert node.run("auto", "sees").split()[0] == "1"
    assert node.run("burst", "sees").split()[0] == "0"
    node.user.running("free")
    node.goes_on("free")
    assert node.run("free", "memory") == str(node.user.gpunode().gpus[1].memory_bytes), "it is not limited"
    eventually(lambda: node.limits_of("free") == ["InForce"], what="known to the audit")

    def placed() -> bool:
        pods = [node.user.pod(name) or {"metadata": {}} for name in ("none-0", "arbiter-0")]
        return any(annotation(pod, contract.ALLOCATION) for pod in pods)

    assert not placed()
    node.delete("client", "auto")
    eventually(placed, what="a share of another kind on the GPU that is free again")


def test_a_fault_or_a_dead_server_ends_the_clients_of_that_gpu_only(node: Node) -> None:
    node.clients(("culprit", "stays", 0, 25), ("neighbour", "works", 0, 25), ("other-gpu", "works", 1, 25))
    node.goes_on("neighbour", "other-gpu")
    node.run("culprit", "faults")
    eventually(lambda: node.restarts("neighbour") == 1, what="the neighbour ended")
    assert "cuCtxSynchronize" in node.user.logs("neighbour", previous=True).splitlines()[-1]
    node.goes_on("neighbour", "other-gpu")

    daemons = node.daemon(0), node.daemon(1)
    os.kill(node.server(1), signal.SIGKILL)
    eventually(lambda: node.restarts("other-gpu") == 1, what="its client ended")
    eventually(lambda: node.done("other-gpu") > 0, what="served by the next server")
    assert (node.daemon(0), node.daemon(1)) == daemons
    assert node.restarts("neighbour") == 1

    assert daemons[0] is not None
    os.kill(daemons[0], signal.SIGKILL)
    eventually(lambda: node.daemon(0) not in {None, daemons[0]}, what="the next daemon")
    eventually(lambda: node.isolations(0) == ALLOWED, what="offered by it")
    system = Observer(node.user.access, contract.SYSTEM_NAMESPACE)
    (agent,) = system.pods("app.kubernetes.io/component=agent")
    assert "An MPS daemon does not run" in system.logs(agent["metadata"]["name"])
    node.goes_on("other-gpu")
    assert node.restarts("other-gpu") == 1

    node.client("starts-servers", "stays", 1)
    for _ in range(MAX_SERVER_FAILURES):
        assert node.run("starts-servers", "sees").startswith("1 ")
        os.kill(node.server(1), signal.SIGKILL)
    eventually(lambda: Isolation.MPS not in node.isolations(1), what="not offered")
    why = "its servers failed"
    eventually(lambda: why in node.condition(contract.CONDITION_LIMITS_IN_FORCE)[1], what="reported")
    assert any(why in note for note in node.audit()["notes"])


@pytest.fixture
def without_agent(installed: lab_layout.Layout, lab: access.Access) -> Away:
    """End the agent for a while. The keeper of the daemons stays, as in an upgrade."""

    system = Observer(lab, contract.SYSTEM_NAMESPACE)
    path = f"/apis/apps/v1/namespaces/{contract.SYSTEM_NAMESPACE}/daemonsets/{gpushare.AGENT}"

    def select(labels: dict[str, str | None]) -> None:
        lab.patch(path, {"spec": {"template": {"spec": {"nodeSelector": labels}}}})

    @contextlib.contextmanager
    def away() -> Iterator[None]:
        select({"none": "none"})
        try:
            eventually(lambda: not system.pods("app.kubernetes.io/component=agent"), what="without an agent")
            yield
        finally:
            select({"none": None})
            gpushare.ready(installed, lab)

    return away


def test_clients_live_on_without_the_agent_and_a_killed_one_wedges_its_gpu(node: Node, without_agent: Away) -> None:
    """With this driver, CUDA 12.4. The client is killed by the kubelet, at the end of its grace period."""
    node.clients(("victim", "insists", 2, 25), ("neighbour", "works", 2, 25), ("other-gpu", "works", 0, 25))
    node.goes_on("victim", "neighbour", "other-gpu")
    daemon = node.daemon(0)
    with without_agent():
        node.goes_on("victim", "neighbour", "other-gpu")
        assert "cuInit 802" in node.run("other-gpu", "sees")
        node.delete_by_force("victim")
    assert node.daemon(0) == daemon
    assert node.run("other-gpu", "sees") == "1 200"
    node.goes_on("other-gpu")
    assert node.restarts("other-gpu") == 0
    eventually(lambda: node.limits_of("neighbour", "other-gpu") == ["InForce", "InForce"], what="limits in force")
    last = node.done("neighbour")
    node.goes_on("other-gpu")
    assert node.done("neighbour") == last
