"""Tests that the processes of a container share one limit, and that dead processes leave nothing behind."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import PROBE, Container, finishing
from tests.interposer.cuda_client import OUT_OF_MEMORY, SUCCESS
from tests.interposer.gpu import Gpu
from tests.interposer.launching import client, goes_on, line, lines_until
from tests.interposer.programs import processes
from tests.programs import command

pytestmark = pytest.mark.slow

LIMIT = 256 * MIB


def start_storm(container: Container, storm: Callable[[], None]) -> subprocess.Popen[str]:
    process = container.start(command(storm))
    assert line(process) == "started"
    return process


@pytest.mark.parametrize("storm", [processes.storm, processes.mixed_storm], ids=["plain", "every way"])
def test_racing_processes_never_exceed_the_limit(
    container: Container, make_arbiter: ArbiterMaker, storm: Callable[[], None]
) -> None:
    arbiter = make_arbiter(LIMIT)
    gpu = Gpu(container)
    processes = [start_storm(container, storm) for _ in range(4)]
    dice = random.Random(7)
    most = 0
    try:
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            most = max(most, gpu.most_used())
            victim = dice.randrange(len(processes))
            with finishing(processes[victim]) as process:
                assert process.poll() is None, process.communicate()
            processes[victim] = start_storm(container, storm)
    finally:
        for process in processes:
            with finishing(process):
                pass
        gpu.close()
    assert LIMIT // 2 < most <= LIMIT
    assert container.filled_bytes() == LIMIT, "the memory of dead processes is free again"
    assert arbiter.hellos > 4


def test_processes_together_can_fill_exactly_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT + 12345)
    processes = [container.start([PROBE, "--fill", "--hold", "60"]) for _ in range(3)]
    filled = 0
    try:
        for process in processes:
            filled += int(lines_until(process, "holding")[-1].removeprefix("filled "))
        filled += container.filled_bytes()
    finally:
        for process in processes:
            with finishing(process):
                pass
    assert filled == LIMIT + 12345


def test_memory_of_a_killed_process_is_free_for_the_next(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    for _ in range(5):
        with finishing(container.start([PROBE, "--fill", "--hold", "60"])) as holder:
            lines_until(holder, "holding")
            holder.send_signal(signal.SIGKILL)
            holder.wait(timeout=60)
            assert container.run([PROBE, "--allocate", str(LIMIT)]).returncode == 0


def test_thread_does_not_take_the_reclaim_answer_of_another(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter, looks, asked = make_arbiter(LIMIT), threading.Semaphore(0), threading.Event()

    def wait_for_a_look() -> None:
        asked.set()
        looks.acquire(timeout=60)

    with finishing(container.start([PROBE, "--fill", "--hold", "60"])) as holder:
        lines_until(holder, "holding")
        arbiter.before_a_look = wait_for_a_look
        with client(container, processes.allocates_in_two_threads, LIMIT) as process:
            assert asked.wait(60)
            goes_on(process)
            began = time.monotonic()
            time.sleep(0.2)  # meanwhile the other thread asks, too
            looks.release()
            assert line(process) == f"one {OUT_OF_MEMORY}"
            holder.kill()
            holder.wait()
            looks.release()
            # The library waits three seconds for an answer, so a machine that stalls this long proves nothing.
            assert line(process) == f"other {SUCCESS}" or time.monotonic() - began > 2.5


def test_forked_child_has_its_own_slot(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(processes.forks)
    assert arbiter.hellos == 2


def test_threads_of_one_process_stay_within_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(processes.fills_with_threads)


def test_limits_hold_when_the_arbiter_is_gone(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    with finishing(container.start(command(processes.goes_on_without_an_arbiter))) as process:
        assert line(process) == "ready"
        assert process.stderr is not None
        arbiter.stop()
        assert "the arbiter went away" in process.stderr.readline()
        _, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors
    assert "the arbiter went away" not in errors
