"""Kernels that wait for each other, like those of collectives."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import command
from tests.simgpu.conftest import Node, finishing
from tests.simgpu.programs import rendezvous

pytestmark = pytest.mark.slow

# A rank of a gang, with device and kernel as arguments: runs a step for each line, and reports it.


@contextlib.contextmanager
def rank(node: Node, device: int, kernel: str) -> Iterator[subprocess.Popen[str]]:
    with finishing(node.start(command(rendezvous.rank, device, kernel))) as process:
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


def test_threads_whose_first_kernels_wait_for_each_other_all_continue(
    node: Node, compiled: Callable[[str], Path]
) -> None:
    # A race between threads for the list of waiting GPUs made one process in thirty hang.
    assert node.run([compiled("meet_first"), "300", "2"]).stdout == "300\n"


@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 0, 0)], ids=["a GPU each", "one GPU"])
def test_ranks_in_separate_processes_meet_by_key(node: Node, devices: tuple[int, ...]) -> None:
    kernel = "meet3_ring_25pct_1ms"
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(rank(node, device, kernel)) for device in devices]
        for _ in range(5):
            steps(*ranks)
            assert [says(rank) for rank in ranks] == ["done"] * 3


def test_kernel_without_its_group_waits_and_keeps_the_gpu_busy(node: Node) -> None:
    with rank(node, 0, "meet2_ring_1ms") as waiting_rank, rank(node, 1, "meet2_other_1ms") as stranger:
        steps(waiting_rank, stranger)
        until_busy(node, 0)
        with rank(node, 1, "meet2_ring_1ms") as two:
            steps(two)
            assert (says(waiting_rank), says(two)) == ("done", "done")


def test_next_gang_reuses_the_entry_of_a_killed_rank(node: Node) -> None:
    kernel = "meet2_ring_1ms"
    with rank(node, 0, kernel) as lost:
        steps(lost)
        until_busy(node, 0)
        lost.kill()
    with rank(node, 1, kernel) as first_rank, rank(node, 2, kernel) as two:
        for _ in range(3):
            steps(first_rank, two)
            assert (says(first_rank), says(two)) == ("done", "done")


def test_launch_with_a_key_fails_without_the_rendezvous_file(node: Node) -> None:
    (node.directory / "rendezvous").unlink()
    with rank(node, 0, "meet2_ring_1ms") as process:
        steps(process)
        _, errors = process.communicate(timeout=120)
        assert "cuLaunchKernel: 802" in errors  # CUDA_ERROR_SYSTEM_NOT_READY
