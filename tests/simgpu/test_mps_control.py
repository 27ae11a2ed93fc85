"""The commands of the MPS control daemon, and which clients its server admits."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import command
from tests.simgpu import mps_node
from tests.simgpu.conftest import Node, finishing
from tests.simgpu.mps_node import CONTROL, GPU_0, NEW_DRIVER, Client, Daemon, client
from tests.simgpu.programs import mps as programs
from tests.simgpu.test_rendezvous import says

pytestmark = pytest.mark.slow

RPC_FAILURE, MAX_CLIENTS_REACHED, CLIENT_TERMINATED = 806, 808, 810


@pytest.fixture
def mps(node: Node, tmp_path: Path) -> Iterator[Daemon]:
    with mps_node.daemon(node, tmp_path) as daemon:
        yield daemon


def uuid(node: Node, index: int) -> str:
    return node.nvml(f"print(nvml.nvmlDeviceGetUUID(gpu({index})))")


def test_lists_name_server_clients_and_devices(node: Node, mps: Daemon) -> None:
    assert mps.tell("get_server_list") == ""
    with client(node, mps.environment) as one, client(node, mps.environment, device=1) as two:
        server = mps.server()
        assert Path(f"/proc/{server}").exists()
        assert mps.tell(f"get_server_status {server}") == "ACTIVE\n"
        assert mps.clients() == {one.process.pid, two.process.pid}
        devices = [f"{uuid(node, index)} {pid}" for index, pid in enumerate((one.process.pid, two.process.pid))]
        assert mps.tell("get_device_client_list").splitlines()[:2] == devices
        title, first, second = mps.tell("ps").splitlines()
        assert title.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
        assert first.split()[:1] + first.split()[2:4] == [str(one.process.pid), str(server), uuid(node, 0)[:22]]
        assert "programs.mps" in second
        assert mps.tell(f"ps -p {server}").splitlines() == [title, first, second]
    assert mps.clients() == set()
    assert mps.server() == server, "a server stays without clients"


def test_daemon_serves_only_its_visible_gpus_in_its_order(node: Node, tmp_path: Path) -> None:
    order = ",".join(uuid(node, index) for index in (2, 0))
    with (
        mps_node.daemon(node, tmp_path, CUDA_VISIBLE_DEVICES=order) as mps,
        client(node, mps.environment) as first,
        client(node, {**mps.environment, **GPU_0}, device=1) as second,
    ):
        assert first.does("attribute 16") == 58  # an L4
        assert second.first == "0 101", "its own list counts within the server's"


def test_wrong_commands_get_a_sentence(mps: Daemon) -> None:
    assert mps.tell("nonsense 1") == "Unknown command: nonsense 1\n"
    assert mps.tell("terminate_client 1 2") == "No server with PID 1: see get_server_list\n"
    assert mps.tell("set_default_active_thread_percentage 120").startswith("Invalid percentage 120: must be")
    assert mps.tell("set_default_device_pinned_mem_limit 9 1G").startswith("Invalid limit 1G for device 9")
    assert mps.tell("sm_partition add GPU-1 1").startswith("Static partitioning is off")
    assert mps.tell("get_default_active_thread_percentage") == "100.0\n"


def test_terminated_client_loses_work_and_memory_but_lives(node: Node, mps: Daemon) -> None:
    with client(node, mps.environment) as one, client(node, mps.environment) as two:
        assert one.does("allocate 7") == 0
        assert two.does("used") == 7
        one.does("launch k_3600000ms")
        one.send("wait")
        assert mps.tell(f"terminate_client {mps.server()} {one.process.pid}") == "0\n"
        assert two.does("used") == 0
        assert int(says(one.process)) == CLIENT_TERMINATED
        assert one.does("allocate 1") == CLIENT_TERMINATED
        assert one.does("context") == CLIENT_TERMINATED
        one.process.kill()
        one.process.wait()
        two.does("launch k_1ms")
        assert two.does("wait") == 0, "killed after it was terminated: no work was outstanding"
    assert mps.tell(f"terminate_client {mps.server()} 1") == "No client with PID 1: see get_client_list\n"


@pytest.mark.parametrize(("replaced", "most"), [({}, 48), (NEW_DRIVER, 60)], ids=["CUDA 12.4", "CUDA 13.6"])
def test_server_takes_a_maximum_of_contexts(tmp_path: Path, replaced: dict[str, str], most: int) -> None:
    with (
        mps_node.described(tmp_path, **replaced) as node,
        mps_node.daemon(node, tmp_path / "mps") as mps,
        client(node, mps.environment) as one,
        client(node, mps.environment) as two,
    ):
        assert one.does("contexts 30") == 30
        assert two.does("contexts 64") == most - 32
        assert two.does("context") == MAX_CLIENTS_REACHED
        with client(node, mps.environment) as late:
            assert late.first == f"0 {MAX_CLIENTS_REACHED}"
        one.process.kill()
        one.process.wait()
        assert two.does("context") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run processes of two users")
def test_server_belongs_to_one_user_unless_it_is_multi_user(node: Node) -> None:
    place = node.directory.parent
    place.chmod(0o755)
    other = ["setpriv", "--reuid=1234", "--clear-groups", *command(programs.obeys, 0)]
    with mps_node.daemon(node, place / "single") as mps, client(node, mps.environment) as one:
        assert one.first == "0 0"
        server = mps.server()
        with finishing(node.start(other, mps.environment)) as waiting:
            assert one.does("used") == 0
            assert waiting.poll() is None
            assert mps.server() == server
            one.process.kill()
            one.process.wait()
            assert Client(waiting).first == "0 0"
            assert mps.server() != server
    with (
        mps_node.daemon(node, place / "multi", "-m") as mps,
        client(node, mps.environment) as one,
        finishing(node.start(other, mps.environment)) as process,
    ):
        assert Client(process).first == "0 0"
        assert mps.clients() == {one.process.pid, process.pid}


@pytest.mark.parametrize("how", ["quit", "shutdown", "kill the server", "kill the daemon"])
def test_clients_end_with_their_server(node: Node, mps: Daemon, how: str) -> None:
    with client(node, mps.environment) as one:
        one.does("launch k_3600000ms")
        one.send("wait")
        server, pipe = mps.server(), Path(mps.environment["CUDA_MPS_PIPE_DIRECTORY"])
        match how:
            case "quit":
                mps.tell("quit")
            case "shutdown":
                mps.tell(f"shutdown_server {server} -f")
            case "kill the server":
                os.kill(server, signal.SIGKILL)
            case "kill the daemon":
                os.kill(int((pipe / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
        assert int(says(one.process)) == RPC_FAILURE
        assert one.does("allocate 1") == RPC_FAILURE


def test_dead_server_is_logged_and_replaced(node: Node, mps: Daemon) -> None:
    with client(node, mps.environment):
        server = mps.server()
        os.kill(server, signal.SIGKILL)
        while str(server) in mps.tell("get_server_list"):
            pass
    with client(node, mps.environment) as next_one:
        assert next_one.first == "0 0"
        assert mps.server() != server
    log = Path(mps.environment["CUDA_MPS_LOG_DIRECTORY"]) / "control.log"
    assert f"Server {server} exited with status 137" in log.read_text()


def test_quit_waits_for_clients_as_long_as_it_says(node: Node, mps: Daemon) -> None:
    pipe = Path(mps.environment["CUDA_MPS_PIPE_DIRECTORY"])
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(client(node, mps.environment))
        mps.tell("quit -t 60")
        assert one.does("used") == 0
        assert mps.tell("get_server_list") != ""
    while (pipe / "nvidia-cuda-mps-control.pid").exists():
        time.sleep(0.01)
    with finishing(node.start([CONTROL], mps.environment)) as process:
        assert "Cannot find MPS control daemon process" in process.communicate("ps\n", timeout=60)[1]
