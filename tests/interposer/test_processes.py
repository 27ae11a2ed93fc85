"""Many processes share one limit; those that die leave nothing behind."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import CLIENT_PRELUDE, PROBE, Container, finishing
from tests.interposer.gpu import Gpu

pytestmark = pytest.mark.slow

LIMIT = 256 * MIB

# Allocates and frees at random for ever; a sum over the limit would be seen by the GPU itself.
STORM = """
import random
c, held = Cuda(), []
print("started", flush=True)
while True:
    result, pointer = c.allocate(random.randrange(1, 40 * MIB))
    if result == SUCCESS:
        held.append(pointer)
    if held and (result != SUCCESS or random.random() < 0.4):
        assert c.free(held.pop(random.randrange(len(held)))) == SUCCESS
"""

# The same by every way to allocate that gives memory back: pools that keep what is freed, handles, arrays, graphs.
MIXED_STORM = """
import random
c, held, stream = Cuda(), [], 0
c.check("cuMemPoolSetAttribute", c.default_pool(), 4, ctypes.byref(ctypes.c_uint64(random.choice((0, 1 << 60)))))
def plain(size):
    result, pointer = c.allocate(size)
    return result, lambda: c.free(pointer)
def pooled(size):
    result, pointer = c.allocate(size, "cuMemAllocAsync", 0)
    return result, lambda: c.call("cuMemFreeAsync", pointer, 0)
def by_handle(size):
    handle, size = ctypes.c_uint64(), -(-size // (2 * MIB)) * 2 * MIB
    result = c.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(on_device(0)), 0)
    return result, lambda: c.call("cuMemRelease", handle.value)
def array(size):
    made = ctypes.c_void_p()
    what = ArrayDescriptor(width=1024, height=size // 1024 + 1, format=1, channels=1)
    return c.call("cuArrayCreate_v2", ctypes.byref(made), ctypes.byref(what)), lambda: c.call("cuArrayDestroy", made)
def graph(size):
    made, what = c.made("cuGraphCreate", 0), allocation(size)
    c.check("cuGraphAddMemAllocNode", ctypes.byref(ctypes.c_void_p()), made, None, 0, ctypes.byref(what))
    exec = c.made("cuGraphInstantiateWithFlags", made, 0)
    return c.call("cuGraphLaunch", exec, 0), lambda: c.call("cuMemFreeAsync", what.pointer, 0)
print("started", flush=True)
while True:
    result, undo = random.choice((plain, pooled, by_handle, array, graph))(random.randrange(1, 40 * MIB))
    assert result in (SUCCESS, OUT_OF_MEMORY), result
    if result == SUCCESS:
        held.append(undo)
    if held and (result != SUCCESS or random.random() < 0.4):
        assert held.pop(random.randrange(len(held)))() == SUCCESS
    if random.random() < 0.1:
        c.check("cuCtxSynchronize")
"""


def start_storm(container: Container, code: str) -> subprocess.Popen[str]:
    process = container.start([sys.executable, "-c", CLIENT_PRELUDE + code])
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.parametrize("storm", [STORM, MIXED_STORM], ids=["plain", "every way"])
def test_processes_that_race_never_exceed_the_limit_together(
    container: Container, make_arbiter: ArbiterMaker, storm: str
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
    result = container.run([PROBE, "--fill"])
    assert result.stdout.splitlines()[-1] == f"filled {LIMIT}", "what the dead held is free again"
    assert arbiter.hellos > 4


def test_what_two_processes_fill_together_is_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT + 12345)
    processes = [container.start([PROBE, "--fill", "--hold", "60"]) for _ in range(3)]
    filled = 0
    try:
        for process in processes:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("filled"):
                    filled += int(line.split()[1])
                if line.startswith("holding"):
                    break
        last = container.run([PROBE, "--fill"]).stdout.splitlines()[-1]
        filled += int(last.split()[1])
    finally:
        for process in processes:
            with finishing(process):
                pass
    assert filled == LIMIT + 12345


def test_a_killed_process_holds_nothing_when_another_asks(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    for _ in range(5):
        with finishing(container.start([PROBE, "--fill", "--hold", "60"])) as holder:
            assert holder.stdout is not None
            while not holder.stdout.readline().startswith("holding"):
                assert holder.poll() is None
            holder.send_signal(signal.SIGKILL)
            holder.wait(timeout=10)
            assert container.run([PROBE, "--allocate", str(LIMIT)]).returncode == 0


def test_the_child_of_a_fork_has_a_slot_of_its_own(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    packages = __import__("pynvml").__file__.rpartition("/")[0]
    # CUDA itself does not work in such a child, NVML does; the parent goes on as if nothing had happened.
    container.python(f"""
import os, sys
sys.path.append({packages!r})
import pynvml
c = Cuda()
assert c.allocate(100 * MIB)[0] == SUCCESS
child = os.fork()
if child == 0:
    pynvml.nvmlInit()
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert memory.used == 100 * MIB
    assert c.allocate(1)[0] not in (SUCCESS, OUT_OF_MEMORY)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert c.info()[0] == 156 * MIB
assert c.allocate(156 * MIB)[0] == SUCCESS
""")
    assert arbiter.hellos == 2


def test_threads_of_one_process_stay_within_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python("""
import threading
c, granted = Cuda(), []
def work():
    c.use(0)
    while c.allocate(MIB)[0] == SUCCESS:
        granted.append(MIB)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sum(granted) <= 256 * MIB
while c.allocate(MIB)[0] == SUCCESS: granted.append(MIB)
assert sum(granted) == 256 * MIB
""")


def test_limits_hold_when_the_arbiter_has_gone(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    code = """
c = Cuda()
assert c.allocate(100 * MIB)[0] == SUCCESS
print("ready", flush=True)
input()
assert c.allocate(156 * MIB)[0] == SUCCESS
assert c.allocate(1)[0] == OUT_OF_MEMORY
assert c.allocate(1)[0] == OUT_OF_MEMORY
"""
    with finishing(container.start([sys.executable, "-c", CLIENT_PRELUDE + code])) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        arbiter.stop()
        _, errors = process.communicate("\n", timeout=10)
        assert process.returncode == 0, errors
    assert errors.count("the arbiter went away") == 1
