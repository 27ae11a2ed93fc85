"""Kernels that wait for each other, as those of collectives do."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import command
from tests.simgpu.conftest import Node, finishing
from tests.simgpu.programs import meetings

pytestmark = pytest.mark.slow

# A rank of a gang: device and kernel are its arguments; it does a step for each line, and says so.


@contextlib.contextmanager
def rank(node: Node, device: int, kernel: str) -> Iterator[subprocess.Popen[str]]:
    with finishing(node.start(command(meetings.rank, device, kernel))) as process:
        assert says(process) == "ready"
        yield process


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def steps(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def until_busy(node: Node, device: int) -> None:
    node.nvml(f"import time\nwhile nvml.nvmlDeviceGetUtilizationRates(gpu({device})).gpu < 25: time.sleep(0.05)")


def test_threads_that_meet_for_the_first_time_at_once_all_go_on(node: Node, compiled: Callable[[str], Path]) -> None:
    # When threads raced for the list of GPUs that meet, one process in thirty waited for ever.
    assert node.run([compiled("meet_first"), "300", "2"]).stdout == "300\n"


@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 0, 0)], ids=["a GPU each", "one GPU"])
def test_ranks_in_processes_of_their_own_meet_by_their_key(node: Node, devices: tuple[int, ...]) -> None:
    kernel = "meet3_ring_25pct_1ms"
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(rank(node, device, kernel)) for device in devices]
        for _ in range(5):
            steps(*ranks)
            assert [says(rank) for rank in ranks] == ["done"] * 3


def test_one_whose_others_have_not_come_waits_and_keeps_its_gpu_busy(node: Node) -> None:
    with rank(node, 0, "meet2_ring_1ms") as waiting_rank, rank(node, 1, "meet2_other_1ms") as stranger:
        steps(waiting_rank, stranger)
        until_busy(node, 0)
        with rank(node, 1, "meet2_ring_1ms") as two:
            steps(two)
            assert (says(waiting_rank), says(two)) == ("done", "done")


def test_the_place_of_a_killed_rank_is_free_for_the_next_gang(node: Node) -> None:
    kernel = "meet2_ring_1ms"
    with rank(node, 0, kernel) as lost:
        steps(lost)
        until_busy(node, 0)
        lost.kill()
    with rank(node, 1, kernel) as first_rank, rank(node, 2, kernel) as two:
        for _ in range(3):
            steps(first_rank, two)
            assert (says(first_rank), says(two)) == ("done", "done")


def test_without_the_file_of_the_node_nobody_meets_by_a_key(node: Node) -> None:
    (node.directory / "rendezvous").unlink()
    with rank(node, 0, "meet2_ring_1ms") as process:
        steps(process)
        _, errors = process.communicate(timeout=120)
        assert "cuLaunchKernel: 802" in errors  # CUDA_ERROR_SYSTEM_NOT_READY
