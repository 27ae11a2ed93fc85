"""Processes take turns on a GPU as contexts do on real hardware: slices, what a switch costs, what a killed one leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simgpu.conftest import COMMAND, ROOT, Node, finishing

# Waits for a line at each step, and says how many milliseconds the waiting for its kernels took.
PRELUDE = """
import time
from cuda_client import *
PTR = ctypes.c_void_p
c = Cuda()
def kernel(name):
    module, function = PTR(), PTR()
    c.check("cuModuleLoadData", ctypes.byref(module), b"")
    c.check("cuModuleGetFunction", ctypes.byref(function), module, name)
    return function
def launch(function): c.check("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
def say(*words): print(*words, flush=True)
def until_done(began=None):
    began = began or time.monotonic()
    c.check("cuCtxSynchronize")
    return (time.monotonic() - began) * 1000
"""


@contextlib.contextmanager
def program(node: Node, code: str) -> Iterator[subprocess.Popen[str]]:
    environment = {"PYTHONPATH": str(ROOT / "tests" / "interposer")}
    with finishing(node.start([sys.executable, "-c", PRELUDE + code], environment)) as process:
        assert line(process) == "ready"
        yield process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


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


def queue(milliseconds: int) -> str:
    """A program that queues so much work in kernels of 10 ms, and says how long they took."""
    return f"""
function = kernel(b"k_10ms")
say("ready")
input()
began = time.monotonic()
for _ in range({milliseconds} // 10): launch(function)
say("queued")
say(until_done(began))
"""


def test_two_processes_have_half_each_whoever_queued_first(node: Node) -> None:
    with program(node, queue(500)) as long, program(node, queue(100)) as short:
        goes_on(long)
        assert line(long) == "queued"
        goes_on(short)
        line(short)
        assert 180 < float(line(short)) < 350  # in the order of launches it would be 600
        assert 590 < float(line(long)) < 900


@pytest.mark.parametrize(("switch", "least", "most"), [("0us", 390, 560), ("1000us", 570, 760)])
def test_each_switch_between_processes_has_its_price(tmp_path: Path, switch: str, least: float, most: float) -> None:
    node = node_with(tmp_path, switch)
    with program(node, queue(200)) as one, program(node, queue(200)) as two:
        goes_on(one, two)
        line(one), line(two)
        assert least < max(float(line(one)), float(line(two))) < most


def test_a_process_alone_pays_for_no_switch(tmp_path: Path) -> None:
    node = node_with(tmp_path, "4000us")
    with program(node, queue(200)) as one:
        goes_on(one)
        line(one)
        assert 200 < float(line(one)) < 260


def test_what_a_killed_process_had_queued_is_gone(node: Node) -> None:
    with program(node, queue(5000)) as hog, program(node, queue(10)) as other:
        goes_on(hog)
        assert line(hog) == "queued"
        hog.kill()
        hog.wait()
        goes_on(other)
        line(other)
        assert float(line(other)) < 60


def test_who_waits_beside_a_process_that_is_killed_is_alone_from_then_on(node: Node) -> None:
    with program(node, queue(5000)) as hog, program(node, queue(200)) as other:
        goes_on(hog, other)
        line(hog), line(other)
        time.sleep(0.1)
        hog.kill()
        assert float(line(other)) < 330  # beside it, it would have been 400 and more


def test_events_tell_when_kernels_ran_and_not_when_they_were_asked(node: Node) -> None:
    code = """
function, events, elapsed = kernel(b"k_10ms"), [PTR(), PTR(), PTR()], ctypes.c_float()
for event in events: c.check("cuEventCreate", ctypes.byref(event), 0)
launch(function)
for event in events:
    c.check("cuEventRecord", event, None)
    for _ in range(3): launch(function)
until_done()
time.sleep(0.05)
for first, second in ((0, 1), (1, 2), (0, 2)):
    c.check("cuEventElapsedTime", ctypes.byref(elapsed), events[first], events[second])
    assert abs(elapsed.value - 30 * (second - first)) < 1, elapsed.value
say("ready")
"""
    with program(node, code):
        pass


def test_kernels_that_meet_wait_for_each_other_and_keep_their_gpus_busy_meanwhile(node: Node) -> None:
    collective = """
functions = []
for device in (0, 1):
    c.use(device)
    functions.append(kernel(b"meet2_10ms"))
say("ready")
for _ in range(2):
    for device in (0, 1):
        input()
        c.use(device)
        launch(functions[device])
    say(until_done())
"""
    with program(node, collective) as both, program(node, queue(50)) as other:
        goes_on(both)
        goes_on(other)
        line(other)
        assert 90 < float(line(other)) < 250  # beside one that spins
        goes_on(both)
        assert 9 < float(line(both)) < 60
        goes_on(both, both)
        assert 9 < float(line(both)) < 60


def test_a_process_that_is_stopped_in_the_middle_of_a_launch_stops_nobody_else(node: Node) -> None:
    launching = """
function = kernel(b"k_1us")
address = c.address("cuLaunchKernel")
launch_fast = ctypes.CFUNCTYPE(ctypes.c_int, PTR, *[ctypes.c_uint] * 7, PTR, PTR, PTR)(address)
say("ready")
while True: launch_fast(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
"""
    steps = """
import signal
signal.alarm(60)
function = kernel(b"k_100us")
say("ready")
while input() == "":
    launch(function)
    say(until_done())
"""
    with program(node, launching) as stopped, program(node, steps) as other:
        for _ in range(30):
            os.kill(stopped.pid, signal.SIGSTOP)
            goes_on(other)
            assert float(line(other)) < 1000
            os.kill(stopped.pid, signal.SIGCONT)
            time.sleep(0.005)


@pytest.mark.slow
def test_a_process_that_is_killed_between_any_two_instructions_stops_nobody_else(
    node: Node, compiled: Callable[[str], Path]
) -> None:
    instructions, survived = map(int, node.run([compiled("killed"), "30"]).stdout.split())
    assert instructions > 1000
    assert survived == 30
