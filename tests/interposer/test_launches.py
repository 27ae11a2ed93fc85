"""Every function that starts work on the GPU waits for the lease of that GPU, however it was found, and nothing else does."""

from __future__ import annotations

import queue
import re
import subprocess
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import ROOT, Container, lines_of_the_library
from tests.interposer.launching import (
    OPEN,
    RELEASED,
    REVOKE,
    STINGY,
    WANT,
    client,
    ends_well,
    goes_on,
    line,
    waits_for_both_kernels,
)
from tests.interposer.reference_arbiter import ReferenceArbiter, Share

LAUNCHES = re.findall(
    r"^LAUNCH\(CUDA, (\w+),", (ROOT / "interposer" / "driver" / "hooks.def").read_text(), re.MULTILINE
)


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
def test_no_launch_passes_without_a_lease(container: Container, make_arbiter: ArbiterMaker, proc: bool) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    code = f"""
QUERIES.update({{name: (name.removesuffix("_ptsz"), 12000, PER_THREAD if name.endswith("_ptsz") else 0)
                 for name in {LAUNCHES!r}}})
QUERIES["cuStreamBeginCapture_v2"] = ("cuStreamBeginCapture", 12000, 0)
c = Cuda(proc={proc})
function = kernel(c)
graph = graph_of(c, function)
assert len({{c.address(name) for name in {LAUNCHES!r}}}) == {len(LAUNCHES)}
say("captured")
for name in {LAUNCHES!r}:
    input()
    result = launch(c, graph if "Graph" in name else function, name)
    say(name, result)
input()
"""
    with client(container, code) as process:
        assert line(process) == "captured"
        with pytest.raises(queue.Empty):
            arbiter.hears(WANT, seconds=0.05)  # what is captured is not launched
        for number, name in enumerate(LAUNCHES, 1):
            goes_on(process)
            assert arbiter.hears(WANT) == (0, 0, 0)
            arbiter.say(OPEN, 0, contract.LEASE_COUNTED, number)
            assert line(process) == f"{name} 0"
            arbiter.say(REVOKE, 0, 0, number)
            assert arbiter.hears(RELEASED)[2] == number
        ends_well(process)


def test_a_revoked_lease_is_given_back_when_nothing_runs_any_more(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    waits_for_both_kernels(container, make_arbiter(MIB, behaviour=STINGY))


def test_a_lease_with_nothing_to_do_goes_back_when_others_wait(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    code = """
c = Cuda()
function = kernel(c, 1000)
assert launch(c, function) == 0
say("idle")
input()
assert launch(c, function) == 0
"""
    with client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, 0, 1)
        assert line(process) == "idle"
        with pytest.raises(queue.Empty):
            arbiter.hears(RELEASED, seconds=0.05)  # nobody else wants it
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED | contract.LEASE_CONTENDED, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)  # said before it was known: no lease
        goes_on(process)
        assert arbiter.hears(WANT) == (0, 0, 0)
        arbiter.say(OPEN, 0, 0, 2)
        ends_well(process)


def test_what_is_told_of_a_lease_that_went_back_opens_no_gate_even_when_another_one_is_wanted(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    code = """
c = Cuda()
function = kernel(c, 1000)
assert launch(c, function) == 0
say("idle")
input()
assert launch(c, function) == 0
"""
    with client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED | contract.LEASE_CONTENDED, 1)
        assert line(process) == "idle"
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        goes_on(process)
        assert arbiter.hears(WANT) == (0, 0, 0)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)  # said before the arbiter heard that it went back
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        arbiter.say(OPEN, 0, 0, 2)
        ends_well(process)


def test_launches_do_not_run_far_ahead_when_counted(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    code = """
c = Cuda()
function = kernel(c, 1000)
for _ in range(100): launch(c, function)
began = time.monotonic()
c.check("cuCtxSynchronize")
say(time.monotonic() - began)
"""
    for flags, least, most in ((contract.LEASE_COUNTED, 0.0, 0.03), (0, 0.05, 1.0)):
        with client(container, code) as process:
            arbiter.hears(WANT)
            arbiter.say(OPEN, 0, flags, 1)
            assert least <= float(ends_well(process)) < most


def test_gates_of_two_gpus_are_two(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, MIB, behaviour=STINGY)
    code = """
c = Cuda()
first = kernel(c)
c.use(1)
second = kernel(c)
c.use(0)
assert launch(c, first) == 0
say("first")
c.use(1)
assert launch(c, second) == 0
say("second")
"""
    with client(container, code) as process:
        assert arbiter.hears(WANT)[0] == 0
        arbiter.say(OPEN, 0, 0, 1)
        assert line(process) == "first"
        assert arbiter.hears(WANT)[0] == 1  # although the first is wide open
        arbiter.say(OPEN, 1, 0, 2)
        assert line(process) == "second"
        ends_well(process)


def test_a_context_that_ends_holds_up_nobody(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    code = """
c = Cuda()
context = PTR()
c.check("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
function = kernel(c, 1000)
assert launch(c, function) == 0
c.check("cuCtxDestroy_v2", context)
say("gone")
input()
c.use(0)
assert launch(c, kernel(c, 1000)) == 0
"""
    with client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "gone"
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        goes_on(process)
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, 0, 2)
        ends_well(process)


def test_without_an_arbiter_a_program_goes_on_for_its_part_of_the_time(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)  # its request is 50 percent
    code = """
c = Cuda()
function = kernel(c, 1000)
launch(c, function)
say("running")
input()
began, done = time.monotonic(), 0
while time.monotonic() - began < 1:
    launch(c, function)
    c.check("cuCtxSynchronize")
    done += 1
say(done)
"""
    with client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "running"
        arbiter.stop()
        output, errors = process.communicate("\n", timeout=20)
        assert process.returncode == 0, errors
        assert 100 < int(output) < 650, output
        assert len(lines_of_the_library(errors)) == 1


@pytest.mark.parametrize("begin", [0, 500])
def test_without_an_arbiter_a_program_launches_when_its_page_says(
    container: Container, arbiter_directory: Path, uuids: list[str], begin: int
) -> None:
    code = """
c = Cuda()
function = kernel(c, 100)
launch(c, function)
say("running")
input()
moments = []
for _ in range(300):
    launch(c, function)
    moments.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 100_000 % 1000)
    c.check("cuCtxSynchronize")
    time.sleep(0.001)
say(*moments)
"""
    share = Share(uuids[0], MIB, turn_permille=(begin, 300))
    with ReferenceArbiter(arbiter_directory, [share], STINGY) as arbiter, client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "running"
        arbiter.stop()
        moments = [int(each) for each in ends_well(process).split()]
    within = sum((moment - begin) % 1000 < 400 for moment in moments)  # some are late, on a busy machine
    assert within > 0.7 * len(moments), sorted(moments)


def test_the_child_of_a_fork_has_no_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(MIB)
    code = """
import os
c = Cuda()
function = kernel(c, 1000)
assert launch(c, function) == 0
child = os.fork()
if child == 0:
    assert launch(c, function) != 0   # CUDA does not work in such a child; but nothing hangs
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert launch(c, function) == 0
c.check("cuCtxSynchronize")
"""
    with client(container, code) as process:
        ends_well(process)


def test_copies_and_fills_wait_for_no_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(MIB, behaviour=STINGY)
    container.python("""
c = Cuda()
_, pointer = c.allocate(MIB)
word = ctypes.c_uint64(7)
c.check("cuMemcpyHtoD_v2", pointer, ctypes.byref(word), 8)
c.check("cuMemcpyDtoD_v2", pointer + 64, pointer, 8)
c.check("cuMemsetD8_v2", pointer, 0, 8)
c.check("cuMemcpyDtoH_v2", ctypes.byref(word), pointer + 64, 8)
c.check("cuCtxSynchronize")
assert word.value == 7
""")
