"""However a context is made, its memory is counted and its work waits for the lease."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import CLIENT_PRELUDE, Container, finishing, with_driver_before
from tests.interposer.launching import (
    OPEN,
    PRELUDE,
    RELEASED,
    REVOKE,
    STINGY,
    WANT,
    client,
    ends_well,
    line,
    waits_for_both_kernels,
)
from tests.interposer.reference_arbiter import Misbehaviour

pytestmark = pytest.mark.slow

LIMIT = 16 * MIB

# Code that makes `context` on device 0, and how its end is called.
WAYS = {
    "plain": ("c.check('cuCtxCreate_v2', REF, 0, 0)", "cuCtxDestroy_v2"),
    "plain, before 3.2": ("c.check('cuCtxCreate', REF, 0, 0)", "cuCtxDestroy"),
    "with affinity": ("c.check('cuCtxCreate_v3', REF, None, 0, 0, 0)", "cuCtxDestroy_v2"),
    "with parameters": ("c.check('cuCtxCreate_v4', REF, None, 0, 0)", "cuCtxDestroy_v2"),
    "OpenGL": ("c.check('cuGLCtxCreate_v2', REF, 0, 0)", "cuCtxDestroy_v2"),
    "OpenGL, before 3.2": ("c.check('cuGLCtxCreate', REF, 0, 0)", "cuCtxDestroy_v2"),
    "VDPAU": ("c.check('cuVDPAUCtxCreate_v2', REF, 0, 0, 1, None)", "cuCtxDestroy_v2"),
    "VDPAU, before 3.2": ("c.check('cuVDPAUCtxCreate', REF, 0, 0, 1, None)", "cuCtxDestroy_v2"),
    "green": (
        "green = PTR(); c.check('cuGreenCtxCreate', ctypes.byref(green), None, 0, 1); "
        "c.check('cuCtxFromGreenCtx', REF, green)",
        "",
    ),
}

CODE = """
PTR = ctypes.c_void_p
context = PTR()
REF = ctypes.byref(context)
c = Cuda.__new__(Cuda)
c._library, c._proc = ctypes.CDLL("libcuda.so.1"), {proc}
c.check("cuInit", 0)
{make}
c.check("cuCtxSetCurrent", context)
"""
QUERIES = """
QUERIES.update({{
    "cuCtxCreate": ("cuCtxCreate", 2000, 0), "cuCtxDestroy": ("cuCtxDestroy", 2000, 0),
    "cuCtxCreate_v3": ("cuCtxCreate", 11040, 0), "cuCtxCreate_v4": ("cuCtxCreate", 12050, 0),
    "cuGLCtxCreate": ("cuGLCtxCreate", 2000, 0), "cuGLCtxCreate_v2": ("cuGLCtxCreate", 3020, 0),
    "cuVDPAUCtxCreate": ("cuVDPAUCtxCreate", 3010, 0), "cuVDPAUCtxCreate_v2": ("cuVDPAUCtxCreate", 3020, 0),
    "cuGreenCtxCreate": ("cuGreenCtxCreate", 12040, 0), "cuCtxFromGreenCtx": ("cuCtxFromGreenCtx", 12040, 0),
}})
"""


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
@pytest.mark.parametrize(("make", "end"), WAYS.values(), ids=WAYS.keys())
def test_memory_of_a_context_is_counted_however_it_was_made(
    container: Container, make_arbiter: ArbiterMaker, make: str, end: str, proc: bool
) -> None:
    arbiter = make_arbiter(LIMIT)
    code = (QUERIES + CODE).format(make=make, proc=proc)
    container.python(
        f"""{code}
assert c.allocate({LIMIT} + 1)[0] == OUT_OF_MEMORY
assert c.allocate({LIMIT})[0] == SUCCESS
assert c.allocate(1)[0] == OUT_OF_MEMORY
if {end!r}: c.check({end!r}, context)
print("ended", flush=True)
"""
    )
    assert not end or arbiter.charged() in ([], [0])


@pytest.mark.parametrize("make", [make for make, _ in WAYS.values()], ids=WAYS.keys())
def test_work_of_a_context_waits_however_it_was_made(
    container: Container, make_arbiter: ArbiterMaker, make: str
) -> None:
    arbiter = make_arbiter(LIMIT, behaviour=Misbehaviour(grants=False))
    code = CODE.format(make=make, proc=False)
    code += """
module, function = PTR(), PTR()
c.check("cuModuleLoadData", ctypes.byref(module), b"")
c.check("cuModuleGetFunction", ctypes.byref(function), module, b"k_1us")
print(c.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, PTR(), PTR(), PTR()), flush=True)
"""
    with finishing(container.start([sys.executable, "-c", CLIENT_PRELUDE + code])) as process:
        arbiter.hears(contract.MESSAGE_WANT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
        arbiter.say(contract.MESSAGE_OPEN, 0, 0, 1)
        output, errors = process.communicate(timeout=20)
        assert output == "0\n", errors


def test_physical_memory_needs_no_context(container: Container, make_arbiter: ArbiterMaker) -> None:
    """As NCCL and allocators take it: before any context, from threads that have none, and some of the host's."""
    make_arbiter(LIMIT)
    code = (CODE.split("{make}")[0]).format(proc=False)
    container.python(
        f"""{code}
import threading
handle, told = ctypes.c_uint64(), []
def create(size, properties):
    made = ctypes.c_uint64()
    return c.call("cuMemCreate", ctypes.byref(made), size, ctypes.byref(properties), 0), made.value
def both():
    told.append(create({LIMIT} + 2 * MIB, on_device(0))[0])
    told.append(create({LIMIT}, on_device(0)))
both()
assert told[0] == OUT_OF_MEMORY and told[1][0] == SUCCESS, told
assert c.call("cuMemRelease", told[1][1]) == SUCCESS
del told[:]
thread = threading.Thread(target=both)
thread.start(); thread.join()
assert told[0] == OUT_OF_MEMORY and told[1][0] == SUCCESS, told
for kind in (2, 3, 4):  # of the host, of one of its nodes, of the node that the thread is on
    result, _ = create(2 * MIB, Properties(type=1, location=Location(type=kind, id=0)))
    assert result != OUT_OF_MEMORY, "the host's memory is not the share's"
assert create(2 * MIB, on_device(0))[0] == OUT_OF_MEMORY
assert create(2 * MIB, on_device(77))[0] not in (SUCCESS, OUT_OF_MEMORY)
assert create(2 * MIB, on_device(-1))[0] not in (SUCCESS, OUT_OF_MEMORY)
"""
    )


def test_releases_of_a_primary_context_that_lives_on_cost_no_memory(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    """As libraries do around each of their calls: an event that was left behind each time would be a megabyte in the end."""
    make_arbiter(LIMIT, behaviour=Misbehaviour(flags=contract.LEASE_COUNTED))
    container.python(f"""{PRELUDE}
class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
c = Cuda()
function, context = kernel(c, 1), PTR()
def turns(count):
    for _ in range(count):
        c.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        launch(c, function)
        c.check("cuDevicePrimaryCtxRelease_v2", 0)
    c.check("cuCtxSynchronize")
    return libc.mallinfo2().h
before = turns(1000)
assert turns(10000) - before < 100000
""")


def test_a_lease_is_not_given_back_by_a_release_while_kernels_run(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    before = "again = PTR(); c.check('cuDevicePrimaryCtxRetain', ctypes.byref(again), 0)"
    release = "c.check('cuDevicePrimaryCtxRelease_v2', 0)"
    waits_for_both_kernels(container, make_arbiter(LIMIT, behaviour=STINGY), before, after=release)


@pytest.fixture
def strict(container: Container, tmp_path: Path) -> Container:
    """A container with a driver that ends whoever uses a context that has ended."""
    return with_driver_before(container, "strict.c", tmp_path)


@pytest.mark.parametrize(
    ("make", "end"),
    [
        ("c.check('cuGreenCtxCreate', REF, None, 0, 1)", "cuGreenCtxDestroy"),
        ("c.check('cuCtxCreate_v2', REF, 0, 0)", "cuCtxDetach"),
    ],
    ids=["cuGreenCtxDestroy", "cuCtxDetach"],
)
def test_a_context_that_has_ended_is_not_used_any_more(
    strict: Container, make_arbiter: ArbiterMaker, make: str, end: str
) -> None:
    arbiter = make_arbiter(LIMIT, behaviour=STINGY)
    code = f"""
c = Cuda()
context = PTR()
REF = ctypes.byref(context)
{make}
c.check("cuCtxSetCurrent", context)
assert launch(c, kernel(c, 1000)) == 0
c.check("cuCtxSynchronize")
c.use(0)
c.check({end!r}, context)
assert launch(c, kernel(c, 1000)) == 0
say("ended")
input()
"""
    with client(strict, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "ended", ends_well(process)
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        ends_well(process)


def test_nothing_is_asked_of_a_driver_that_goes_when_the_process_exits(
    strict: Container, make_arbiter: ArbiterMaker
) -> None:
    """While kernels run, and somebody waits for the GPU: so it is asked all the time whether they still do."""
    arbiter = make_arbiter(LIMIT, behaviour=STINGY)
    code = """
c = Cuda()
function = kernel(c, 100000)
assert launch(c, function) == 0
say("running")
input()
"""
    with client(strict, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED | contract.LEASE_CONTENDED, 1)
        assert line(process) == "running"
        arbiter.say(REVOKE, 0, 0, 1)
        ends_well(process)
