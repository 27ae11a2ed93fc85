"""What a context takes is charged before it is made and given back when it goes; what was measured beyond counts."""

from __future__ import annotations

import sys

import pytest

from tests.interposer import container as containers
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container

LIMIT = 64 * MIB
CONTEXT = 10 * MIB
# Each ends with nothing of a context left.
ENDS = {
    "the last release": 'c.check("cuDevicePrimaryCtxRelease_v2", 0)',
    "a reset": 'c.check("cuDevicePrimaryCtxReset_v2", 0)',
    "all of several releases": """
c.use(0)
c.use(0)
c.check("cuDevicePrimaryCtxRelease_v2", 0)
assert c.info() == (LIMIT - CONTEXT - (1 << 20), LIMIT)
c.check("cuDevicePrimaryCtxRelease_v2", 0)
c.check("cuDevicePrimaryCtxRelease_v2", 0)
""",
}
OWN = f"""
LIMIT, CONTEXT = {LIMIT}, {CONTEXT}
def own():
    context = ctypes.c_void_p()
    return c.call("cuCtxCreate_v2", ctypes.byref(context), 0, 0), context
"""


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_primary_context_is_charged_once_and_given_back(
    container: Container, make_arbiter: ArbiterMaker, end: str
) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, context_bytes=CONTEXT)
    shown = container.python(f"""
{OWN}
c = Cuda()
assert c.info() == (LIMIT - CONTEXT, LIMIT)
assert c.allocate(LIMIT - CONTEXT + 1)[0] == OUT_OF_MEMORY
assert c.allocate(1 << 20)[0] == SUCCESS
{end}
c.use(0)
assert c.info() == (LIMIT - CONTEXT, LIMIT)
print("charged once")
""")
    assert shown == "charged once"


def test_a_context_of_the_programs_own_is_charged_and_given_back(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, context_bytes=CONTEXT)
    container.python(f"""
{OWN}
c = Cuda()
made = [own() for _ in range(5)]
assert [result for result, _ in made] == [SUCCESS] * 5
assert c.info() == (LIMIT - 6 * CONTEXT, LIMIT)
assert own()[0] == OUT_OF_MEMORY
for _, context in made:
    c.check("cuCtxDestroy_v2", context)
c.check("cuDevicePrimaryCtxReset_v2", 0)
c.use(0)
assert c.info() == (LIMIT - CONTEXT, LIMIT)
""")


def test_a_context_that_does_not_fit_is_refused_with_a_line(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, context_bytes=CONTEXT, overhead_bytes=LIMIT - CONTEXT + 1)
    ended = container.run([sys.executable, "-c", containers.CLIENT_PRELUDE + "Cuda()"])
    assert "cuDevicePrimaryCtxRetain: 2" in ended.stderr
    assert containers.lines_of_the_library(ended.stderr) == [
        "gpushare: no memory for a CUDA context: one takes about 10 MiB of this GPU, and 54 MiB of the 64 MiB that the "
        "container may use are taken: end some of its processes, or ask for more (gpushare.io/memory)"
    ]
    assert arbiter.charged() == []


def test_threads_that_make_the_primary_context_at_once_pay_for_one(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, context_bytes=LIMIT)  # room for one and no more
    shown = container.python("""
import threading
c = Cuda.__new__(Cuda)
c._library, c._proc = ctypes.CDLL("libcuda.so.1"), False
c.check("cuInit", 0)
results, begin = [], threading.Barrier(8)
def make():
    context = ctypes.c_void_p()
    begin.wait(10)
    results.append(c.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0))
threads = [threading.Thread(target=make) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(10)
print(results)
""")
    assert shown == str([0] * 8)
    assert arbiter.charged() in ([LIMIT], [])  # or it has ended already


def test_what_was_measured_counts_and_can_exceed_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, overhead_bytes=4 * MIB)
    container.python(f"""
{OWN}
c = Cuda()
assert c.info() == (LIMIT - {4 * MIB}, LIMIT)
assert c.allocate(LIMIT - {4 * MIB} + 1)[0] == OUT_OF_MEMORY
result, pointer = c.allocate(LIMIT - {4 * MIB})
assert result == SUCCESS
assert c.free(pointer) == SUCCESS
""")
    arbiter.set(0, overhead_bytes=LIMIT + MIB)
    container.python(f"""
{OWN}
c = Cuda()
assert c.info() == (0, LIMIT)
assert c.allocate(1)[0] == OUT_OF_MEMORY
""")


def test_a_gpu_that_is_not_the_shares_costs_no_context(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)  # of the first GPU
    arbiter.set(0, context_bytes=LIMIT)
    container.python("""
c = Cuda(device=1)
assert c.allocate(1)[0] == NOT_PERMITTED
""")
    assert arbiter.charged() == []
