"""A container that is short of something CUDA's start needs gets an error and one line, or works; nothing waits for ever."""

from __future__ import annotations

import os
import sys

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import CLIENT_PRELUDE, PROBE, Container, lines_of_the_library

# What is taken away before the first call, and what the line says.
SHORTAGES = {
    "no descriptor at all": ("fill(0)", "no descriptor for the connection to the arbiter: raise the container's limit"),
    "one descriptor": ("fill(1)", "no descriptor for the connection to the arbiter: raise the container's limit"),
    "two descriptors": ("fill(2)", "no descriptor for the connection to the arbiter: raise the container's limit"),
    "no address space": ("squeeze()", "raise the container's limit"),
}
SHORTAGE = """
import os, resource
library = ctypes.CDLL("libcuda.so.1")
def fill(left):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True: taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError: pass
    for _ in range(left): os.close(taken.pop())
    globals()["undo"] = lambda: [os.close(each) for each in taken]
def squeeze():
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * 4096 + 65536
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    globals()["undo"] = lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


@pytest.mark.parametrize(("take", "said"), SHORTAGES.values(), ids=SHORTAGES.keys())
def test_what_is_missing_at_the_start_is_named_and_the_start_can_be_tried_again(
    container: Container, make_arbiter: ArbiterMaker, take: str, said: str
) -> None:
    make_arbiter(5 * MIB)
    code = f"""
{SHORTAGE}
{take}
results = [library.cuInit(0) for _ in range(3)]
undo()
assert results == [SYSTEM_NOT_READY] * 3, results
c = Cuda()
assert c.allocate(5 * MIB)[0] == SUCCESS
c.launch(c.kernel("k_1us"))
assert c.allocate(1)[0] == OUT_OF_MEMORY
"""
    result = container.run([sys.executable, "-c", CLIENT_PRELUDE + code])
    assert result.returncode == 0, result.stderr
    (told,) = lines_of_the_library(result.stderr)
    assert said in told


def test_without_a_thread_cuda_does_not_start(container: Container, make_arbiter: ArbiterMaker) -> None:
    """A filter of system calls takes away what threads are made of."""
    make_arbiter(5 * MIB)
    code = """
import struct
library = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None, use_errno=True)
EPERM, ALLOW, ERRNO = 1, 0x7FFF0000, 0x00050000
def refuse(*numbers):
    program = [(0x20, 0, 0, 0)]
    for number in numbers: program += [(0x15, 0, 1, number), (0x06, 0, 0, ERRNO | EPERM)]
    program.append((0x06, 0, 0, ALLOW))
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filters", ctypes.c_void_p)]
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Program(len(program), ctypes.addressof(filters))), 0, 0) == 0
CLONE, CLONE3 = 56, 435
refuse(CLONE, CLONE3)
print([library.cuInit(0) for _ in range(3)])
"""
    result = container.run([sys.executable, "-c", CLIENT_PRELUDE + code])
    assert result.stdout == "[802, 802, 802]\n", result.stderr
    (told,) = lines_of_the_library(result.stderr)
    assert "no thread for leases can be started" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can mount")
@pytest.mark.parametrize(
    "before",
    [
        "mount --bind /proc /proc && mount -o remount,ro,bind /proc",
        "mount -t tmpfs none /proc",  # nothing there at all
        "exec 0<&- 2<&-",  # no standard streams: their numbers may become the library's own
    ],
    ids=["read-only /proc", "no /proc", "closed streams"],
)
def test_a_bare_container_has_its_share(container: Container, make_arbiter: ArbiterMaker, before: str) -> None:
    make_arbiter(5 * MIB)
    result = container.run(["sh", "-c", f'set -e; {before}; exec "$0" --fill', PROBE])
    assert result.stdout.splitlines()[-1:] == [f"filled {5 * MIB}"], result.stderr
