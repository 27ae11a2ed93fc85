"""The MPS clients that end with a killed or faulting one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simgpu import mps_node
from tests.simgpu.conftest import Node
from tests.simgpu.mps_node import GPU_0, NEW_DRIVER, Client, Daemon, client

pytestmark = pytest.mark.slow

NOT_READY, ILLEGAL_ADDRESS, SERVER_NOT_READY = 600, 700, 807
LONG = "k_50pct_3600000ms"


@contextlib.contextmanager
def two_clients(place: Path, *options: str, **replaced: str) -> Iterator[tuple[Node, Daemon, Client, Client]]:
    with (
        mps_node.described(place, **replaced) as node,
        mps_node.daemon(node, place / "mps", *options) as mps,
        client(node, mps.environment) as one,
        client(node, mps.environment) as two,
    ):
        yield node, mps, one, two


def kill(client: Client) -> None:
    client.process.kill()
    client.process.wait()


def status(mps: Daemon) -> str:
    return mps.tell(f"get_server_status {mps.server()}").strip()


def runs(client: Client) -> bool:
    """Whether a kernel of 1 ms ends; on a wedged server it never does."""
    assert client.does("launch k_1ms") == 0
    return any(client.does("query") == 0 for _ in range(2000))


def test_killed_client_with_outstanding_work_wedges_the_server(tmp_path: Path) -> None:
    with two_clients(tmp_path, cuda_version="13.5") as (node, mps, one, two):
        one.does(f"launch {LONG}")
        kill(one)
        assert not runs(two)
        with client(node, mps.environment) as late:
            assert not runs(late)
        with client(node, {}) as outside:
            assert runs(outside), "only the server is wedged"
        mps.tell(f"shutdown_server {mps.server()} -f")
        with client(node, mps.environment) as after:
            assert runs(after)


def test_idle_others_find_the_server_wedged_later(tmp_path: Path) -> None:
    with two_clients(tmp_path) as (node, mps, one, two), client(node, {}, device=1) as other:
        one.does("launch k_500ms")
        kill(one)
        while str(one.process.pid) in mps.tell("ps"):
            pass
        assert other.does("launch k_500ms") == other.does("wait") == 0
        assert two.does("used") == 0
        assert not runs(two), "the work would have ended before this launch"


@pytest.mark.parametrize("why", ["newer", "no work", "ended work", "orderly exit"])
def test_no_wedge(tmp_path: Path, why: str) -> None:
    with two_clients(tmp_path, **(NEW_DRIVER if why == "newer" else {})) as (_, _, one, two):
        if why != "no work":
            one.does("launch k_1ms" if why == "ended work" else f"launch {LONG}")
        if why == "ended work":
            assert one.does("wait") == 0
        if why == "orderly exit":
            one.process.communicate(timeout=60)
        else:
            kill(one)
        assert runs(two)


def test_fault_ends_all_clients_and_the_server_takes_no_new_ones_until_they_left(tmp_path: Path) -> None:
    with two_clients(tmp_path) as (node, mps, one, two), client(node, mps.environment, device=1) as other:
        two.does("allocate 3")
        two.does(f"launch {LONG}")
        one.does("launch fault_25pct_1ms")
        assert one.does("wait") == ILLEGAL_ADDRESS
        assert two.does("wait") == ILLEGAL_ADDRESS
        assert two.does("context") == ILLEGAL_ADDRESS, "until the process exits"
        assert runs(other), "it is on another GPU"
        assert status(mps) == "FAULT"
        for device in (0, 1):
            with client(node, mps.environment, device=device) as late:
                assert late.first == str(SERVER_NOT_READY)
        kill(one)
        with client(node, mps.environment) as late:
            assert late.first == str(SERVER_NOT_READY), "one of them is still there"
        kill(two)
        with client(node, mps.environment) as after:
            assert status(mps) == "ACTIVE"
            assert runs(after)


def test_fault_outside_mps_ends_only_its_own_context(tmp_path: Path) -> None:
    with mps_node.described(tmp_path) as node, client(node, GPU_0) as one, client(node, GPU_0) as two:
        one.does("launch fault_1ms")
        assert one.does("wait") == ILLEGAL_ADDRESS
        assert runs(two)
