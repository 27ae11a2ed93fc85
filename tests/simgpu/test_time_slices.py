"""Processes take turns on a GPU like contexts on real hardware: time slices, the cost of a switch, killed processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import Parameters, command
from tests.simgpu.conftest import COMMAND, ROOT, Node, finishing
from tests.simgpu.programs import time_slices

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def program(
    node: Node, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
) -> Iterator[subprocess.Popen[str]]:
    with finishing(node.start(command(function, *values, **named))) as process:
        assert line(process) == "ready"
        yield process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def launched(process: subprocess.Popen[str]) -> None:
    goes_on(process)
    assert line(process) == "launched"


def took(process: subprocess.Popen[str]) -> float:
    """Return the milliseconds of the process's own `queue`, from its first launch on."""
    return float(line(process).split()[0])


def together(*processes: subprocess.Popen[str]) -> float:
    """Return the milliseconds from the first launch of any of them until all have ended."""
    spans = [tuple(map(float, line(process).split())) for process in processes]
    return max(began + seconds for seconds, began in spans) - min(began for _, began in spans)


def goes_on(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def node_with(tmp_path: Path, switch: str) -> Node:
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description = tmp_path / "node.ini"
    description.write_text(text.replace("[gpu 2]", f"context-switch = {switch}\n[gpu 2]"))
    subprocess.run([COMMAND, "create", description, tmp_path / "own"], check=True)
    return Node(tmp_path / "own")


def test_two_processes_get_half_each_in_any_order(node: Node) -> None:
    with program(node, time_slices.queue, 500) as long, program(node, time_slices.queue, 100) as short:
        goes_on(long)
        assert line(long) == "queued"
        goes_on(short)
        line(short)
        assert 180 < took(short) < 350  # in launch order it would be 600
        assert 590 < took(long) < 900


@pytest.mark.parametrize(("switch", "least", "most"), [("0us", 390, 560), ("1000us", 500, 760)])
def test_each_switch_between_processes_costs_time(tmp_path: Path, switch: str, least: float, most: float) -> None:
    node = node_with(tmp_path, switch)
    with program(node, time_slices.queue, 200) as first_process, program(node, time_slices.queue, 200) as two:
        goes_on(first_process, two)
        line(first_process), line(two)
        assert least < together(first_process, two) < most


def test_single_process_pays_for_no_switches(tmp_path: Path) -> None:
    node = node_with(tmp_path, "4000us")
    with program(node, time_slices.queue, 200) as process:
        goes_on(process)
        line(process)
        assert 199 < took(process) < 500  # with a switch for each of its slices it would be 600


def test_queued_work_of_a_killed_process_is_dropped(node: Node) -> None:
    with program(node, time_slices.queue, 5000) as hog, program(node, time_slices.queue, 300) as other:
        goes_on(hog)
        assert line(hog) == "queued"
        hog.kill()
        hog.wait()
        goes_on(other)
        line(other)
        assert took(other) < 550  # it would have been 600 if both had run


def test_process_has_the_gpu_alone_after_the_other_is_killed(node: Node) -> None:
    with program(node, time_slices.queue, 5000) as hog, program(node, time_slices.queue, 500) as other:
        goes_on(hog, other)
        line(hog), line(other)
        time.sleep(0.1)
        hog.kill()
        assert took(other) < 900  # it would have been 1000 if both had run


def test_event_times_are_those_of_the_kernels(node: Node) -> None:
    with program(node, time_slices.events):
        pass


def test_kernels_that_meet_keep_their_gpus_busy_while_waiting(node: Node) -> None:
    with program(node, time_slices.collective) as both, program(node, time_slices.queue, 50) as other:
        launched(both)
        goes_on(other)
        line(other)
        assert 90 < took(other) < 250  # while another process spins
        launched(both)
        assert 10 <= float(line(both)) < 250
        launched(both), launched(both)
        assert 10 <= float(line(both)) < 250


def test_process_stopped_during_a_launch_does_not_block_others(node: Node) -> None:
    with program(node, time_slices.launches_for_ever) as stopped, program(node, time_slices.steps) as other:
        for _ in range(30):
            os.kill(stopped.pid, signal.SIGSTOP)
            goes_on(other)
            assert float(line(other)) < 1000
            os.kill(stopped.pid, signal.SIGCONT)
            time.sleep(0.005)


def test_process_killed_between_any_instructions_does_not_block_others(
    node: Node, compiled: Callable[[str], Path]
) -> None:
    instructions, survived = map(int, node.run([compiled("killed"), "30"]).stdout.split())
    assert instructions > 1000
    assert survived == 30
