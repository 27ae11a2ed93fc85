"""Memory that processes share, in every way that CUDA has: its maker is charged and nobody else, whoever dies first."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import CLIENT_PRELUDE, PROBE, Container, finishing
from tests.interposer.gpu import Gpu

LIMIT = 64 * MIB
SHARED = 32 * MIB  # what a pool takes at least
PRELUDE = f"""
import os, socket
SHARED = {SHARED}
channel = lambda number: socket.socket(fileno=number)
used = lambda: {LIMIT} - c.info()[0]
word = ctypes.c_uint64(0x5EED)
def say(*words): print(*words, flush=True)
def write(pointer): c.check("cuMemcpyHtoD_v2", pointer, ctypes.byref(word), 8)
def read(pointer):
    found = ctypes.c_uint64()
    c.check("cuMemcpyDtoH_v2", ctypes.byref(found), pointer, 8)
    return found.value
"""


@dataclass(frozen=True, slots=True)
class Way:
    """How memory is shared: code that makes it, exports it to `there`, imports it as `pointer`, and lets it go."""

    make: str
    export: str
    get: str
    end: str


WAYS = {
    "a pool": Way(
        """
pool, token = ctypes.c_void_p(), (ctypes.c_ubyte * 64)()
c.check("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(on_device(0, 1)))
result, pointer = c.allocate(20 * MIB, "cuMemAllocFromPoolAsync", pool, 0)
assert result == SUCCESS
""",
        """
descriptor = ctypes.c_int(-1)
c.check("cuMemPoolExportToShareableHandle", ctypes.byref(descriptor), pool, 1, 0)
c.check("cuMemPoolExportPointer", token, pointer)
socket.send_fds(there, [bytes(token)], [descriptor.value])
""",
        """
token, (descriptor,), _, _ = socket.recv_fds(there, 64, 1)
pool, pointer = ctypes.c_void_p(), ctypes.c_uint64()
c.check("cuMemPoolImportFromShareableHandle", ctypes.byref(pool), descriptor, 1, 0)
c.check("cuMemPoolImportPointer", ctypes.byref(pointer), pool, token)
assert c.allocate(MIB, "cuMemAllocFromPoolAsync", pool, 0)[0] not in (SUCCESS, OUT_OF_MEMORY), "it is not ours"
pointer = pointer.value
""",
        """
c.check("cuMemFreeAsync", pointer, 0)
""",
    ),
    "handles": Way(
        """
handle, address = ctypes.c_uint64(), ctypes.c_uint64()
c.check("cuMemCreate", ctypes.byref(handle), SHARED, ctypes.byref(on_device(0, 1)), 0)
c.check("cuMemAddressReserve", ctypes.byref(address), SHARED, 0, 0, 0)
c.check("cuMemMap", address.value, SHARED, 0, handle.value, 0)
pointer = address.value
access = (ctypes.c_int * 3)(1, 0, 3)
c.check("cuMemSetAccess", pointer, SHARED, access, 1)
""",
        """
descriptor = ctypes.c_int(-1)
c.check("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle.value, 1, 0)
socket.send_fds(there, [b"x"], [descriptor.value])
""",
        """
_, (descriptor,), _, _ = socket.recv_fds(there, 1, 1)
handle, address = ctypes.c_uint64(), ctypes.c_uint64()
c.check("cuMemImportFromShareableHandle", ctypes.byref(handle), descriptor, 1)
c.check("cuMemAddressReserve", ctypes.byref(address), SHARED, 0, 0, 0)
c.check("cuMemMap", address.value, SHARED, 0, handle.value, 0)
pointer = address.value
c.check("cuMemSetAccess", pointer, SHARED, (ctypes.c_int * 3)(1, 0, 3), 1)
""",
        """
c.check("cuMemUnmap", pointer, SHARED)
c.check("cuMemRelease", handle.value)
""",
    ),
    "legacy IPC": Way(
        """
result, pointer = c.allocate(SHARED)
assert result == SUCCESS
""",
        """
token = (ctypes.c_ubyte * 64)()
c.check("cuIpcGetMemHandle", token, pointer)
there.send(bytes(token))
""",
        """
class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]
token, opened = there.recv(64), []
for _ in range(2):
    pointer = ctypes.c_uint64()
    c.check("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), Handle.from_buffer_copy(token), 1)
    opened.append(pointer.value)
assert opened[0] == opened[1]
pointer = opened[0]
c.check("cuIpcCloseMemHandle", pointer)
""",
        """
assert c.free(pointer) != SUCCESS, "it was not allocated here"
c.check("cuIpcCloseMemHandle", pointer)
""",
    ),
}


@contextmanager
def pair(container: Container, way: Way, after: str) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """One process that shares what it made, and one that has it and does `after`; each then waits for a line."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    exporter = f"there = channel({ours.fileno()})\nc = Cuda()\n{way.make}\nwrite(pointer)\n{way.export}\nsay('shared')\ninput()\n"
    importer = f"there = channel({theirs.fileno()})\nc = Cuda()\n{way.get}\nassert read(pointer) == word.value\n{after}\nsay('has it')\ninput()\n"
    with (
        finishing(_start(container, exporter, ours)) as maker,
        finishing(_start(container, importer, theirs)) as other,
    ):
        ours.close()
        theirs.close()
        assert maker.stdout is not None
        assert other.stdout is not None
        assert maker.stdout.readline() == "shared\n", maker.communicate(timeout=10)
        assert other.stdout.readline() == "has it\n", other.communicate(timeout=10)
        yield maker, other


def _start(container: Container, code: str, end: socket.socket) -> subprocess.Popen[str]:
    return container.start([sys.executable, "-c", CLIENT_PRELUDE + PRELUDE + code], keep=(end.fileno(),))


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def _rest_is(container: Container, left_bytes: int) -> None:
    assert container.run([PROBE, "--fill"]).stdout.splitlines()[-1] == f"filled {left_bytes}"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_shared_memory_is_charged_once(container: Container, make_arbiter: ArbiterMaker, way: Way) -> None:
    arbiter = make_arbiter(LIMIT)
    after = f"assert used() == SHARED\n{way.end}\nassert used() == SHARED\nassert c.allocate(SHARED + 1)[0] == OUT_OF_MEMORY"
    with pair(container, way, after) as (_, importer):
        assert arbiter.charged() == [SHARED]
        importer.communicate("\n", timeout=10)
        assert importer.returncode == 0
        _rest_is(container, LIMIT - SHARED)
    _rest_is(container, LIMIT)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("dies", ["its maker", "who imported it"])
def test_whoever_is_killed_takes_with_him_what_he_was_charged_for_and_no_more(
    container: Container, make_arbiter: ArbiterMaker, way: Way, dies: str
) -> None:
    arbiter = make_arbiter(LIMIT)
    with pair(container, way, f"assert c.allocate({10 * MIB})[0] == SUCCESS") as (maker, importer):
        assert sorted(arbiter.charged()) == [10 * MIB, SHARED]
        _kill(maker if dies == "its maker" else importer)
        _rest_is(container, LIMIT - (10 * MIB if dies == "its maker" else SHARED))
    _rest_is(container, LIMIT)


@pytest.mark.slow
def test_processes_that_share_and_die_at_any_moment_never_exceed_the_limit(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    gpu, dice = Gpu(container), random.Random(11)
    storm = """
import random
say("started")
while True:
    result, taken = c.allocate(random.randrange(1, 20 * MIB))
    if result == SUCCESS: c.free(taken)
"""
    try:
        for way in list(WAYS.values()) * 3:
            with pair(container, way, "") as both, finishing(_start_alone(container, "c = Cuda()\n" + storm)) as beside:
                assert beside.stdout is not None
                assert beside.stdout.readline() == "started\n"
                for process in dice.sample(both, 2):
                    assert gpu.most_used() <= LIMIT
                    _kill(process)
                assert gpu.most_used() <= LIMIT
                assert beside.poll() is None
            _rest_is(container, LIMIT)
    finally:
        gpu.close()


def _start_alone(container: Container, code: str) -> subprocess.Popen[str]:
    return container.start([sys.executable, "-c", CLIENT_PRELUDE + PRELUDE + code])
