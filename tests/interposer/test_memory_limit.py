"""Every way to allocate is counted to the byte, and given back."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import PROBE, Container

LIMIT = 64 * MIB

# code that sets `attempt(n) -> (result, undo)`, for each kind of allocation
KINDS = {
    "plain": "attempt = lambda n: (lambda r, p: (r, lambda: c.free(p)))(*c.allocate(n))",
    "plain of 32 bits": """
def attempt(n):
    pointer = ctypes.c_uint32()
    result = c.call("cuMemAlloc", ctypes.byref(pointer), n)
    return result, lambda: c.call("cuMemFree", pointer.value)
""",
    "managed": "attempt = lambda n: (lambda r, p: (r, lambda: c.free(p)))(*c.allocate(n, 'cuMemAllocManaged', 1))",
    "stream-ordered": """
def attempt(n):
    result, pointer = c.allocate(n, "cuMemAllocAsync", 0)
    return result, lambda: c.call("cuMemFreeAsync", pointer, 0)
""",
    "stream-ordered per thread": """
def attempt(n):
    result, pointer = c.allocate(n, "cuMemAllocAsync_ptsz", 0)
    return result, lambda: c.call("cuMemFreeAsync_ptsz", pointer, 0)
""",
    "from a pool": """
pool = c.default_pool()
def attempt(n):
    result, pointer = c.allocate(n, "cuMemAllocFromPoolAsync", pool, 0)
    return result, lambda: c.call("cuMemFreeAsync", pointer, 0)
""",
    "from a pool per thread": """
pool = c.default_pool()
def attempt(n):
    result, pointer = c.allocate(n, "cuMemAllocFromPoolAsync_ptsz", pool, 0)
    return result, lambda: c.free(pointer)
""",
}


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_the_byte_above_the_limit_is_refused(
    container: Container, make_arbiter: ArbiterMaker, kind: str, proc: bool
) -> None:
    arbiter = make_arbiter(LIMIT)
    container.python(f"""
c = Cuda(proc={proc})
{kind}
limit = {LIMIT}
assert attempt(limit + 1)[0] == OUT_OF_MEMORY
result, undo = attempt(limit)
assert result == SUCCESS
assert attempt(1)[0] == OUT_OF_MEMORY
assert undo() == SUCCESS
assert attempt(limit)[0] == SUCCESS
""")
    assert arbiter.reclaims >= 1, "the arbiter must be asked before a refusal"


def test_a_container_fills_its_share_to_the_byte(container: Container, make_arbiter: ArbiterMaker) -> None:
    limit = 1_234_567_891
    make_arbiter(limit)
    for flags in ([], ["--direct"]):
        result = container.run([PROBE, "--fill", *flags])
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.splitlines()[-1] == f"filled {limit}"


def test_rows_are_charged_with_their_padding(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.python("""
c = Cuda()
pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
def pitched(width, height):
    return c.call("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(pitch), width, height, 4)
assert pitched(513, 65536) == SUCCESS and pitch.value == 1024
assert c.free(pointer.value) == SUCCESS
assert pitched(513, 65537) == OUT_OF_MEMORY
assert pitched((1 << 64) - 1, 2) == OUT_OF_MEMORY
assert c.info()[0] == 64 * MIB
""")
    assert arbiter.charged() in ([], [0])


def test_the_end_of_a_context_gives_its_memory_back(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python("""
c = Cuda()
assert c.allocate(10 * MIB)[0] == SUCCESS
context = ctypes.c_void_p()
c.check("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
assert c.allocate(20 * MIB)[0] == SUCCESS
assert c.info()[0] == 34 * MIB
c.check("cuCtxDestroy_v2", context)
assert c.info()[0] == 54 * MIB, "the other context's memory is still there"
assert c.call("cuCtxDestroy_v2", context) != SUCCESS
assert c.info()[0] == 54 * MIB
c.use(0)
c.check("cuDevicePrimaryCtxRelease_v2", 0)
assert c.info()[0] == 54 * MIB, "one of two references is left"
c.check("cuDevicePrimaryCtxReset_v2", 0)
c.use(0)
assert c.info()[0] == 64 * MIB
""")


def test_a_free_that_fails_gives_nothing_back(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python("""
c = Cuda()
result, pointer = c.allocate(MIB)
assert c.free(pointer + 4096) != SUCCESS
assert c.info()[0] == 63 * MIB
c.check("cuCtxSetCurrent", None)
assert c.free(pointer) != SUCCESS, "no context"
c.use(0)
assert c.info()[0] == 63 * MIB
assert c.free(pointer) == SUCCESS
assert c.free(pointer) != SUCCESS
assert c.info()[0] == 64 * MIB
""")


def test_physical_memory_counts_until_its_last_handle_and_mapping(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python("""
c = Cuda()
handle, other, address = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
properties = on_device(0)
def create(size):
    return c.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), 0)
def used():
    return 64 * MIB - c.info()[0]
assert create(66 * MIB) == OUT_OF_MEMORY
assert create(64 * MIB) == SUCCESS
c.check("cuMemAddressReserve", ctypes.byref(address), 128 * MIB, 0, 0, 0)
c.check("cuMemMap", address.value, 64 * MIB, 0, handle.value, 0)
assert c.call("cuMemMap", address.value, 64 * MIB, 0, handle.value, 0) != SUCCESS
c.check("cuMemMap", address.value + 64 * MIB, 64 * MIB, 0, handle.value, 0)
c.check("cuMemRetainAllocationHandle", ctypes.byref(other), address.value + 70 * MIB)
c.check("cuMemRelease", handle.value)
assert used() == 64 * MIB
c.check("cuMemRelease", handle.value)
assert used() == 64 * MIB
assert c.call("cuMemRelease", 999) != SUCCESS
c.check("cuMemUnmap", address.value, 128 * MIB)
assert used() == 0
assert create(64 * MIB) == SUCCESS
""")


def test_each_gpu_has_its_own_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(10 * MIB, 20 * MIB)
    code = """
c = Cuda(device={device})
assert c.allocate({limit} * MIB + 1)[0] == OUT_OF_MEMORY
assert c.allocate({limit} * MIB)[0] == SUCCESS
"""
    container.python(code.format(device=0, limit=10))
    container.python(code.format(device=1, limit=20))
    container.python(code.format(device=0, limit=20), {"CUDA_VISIBLE_DEVICES": "1"})


def test_stream_ordered_memory_is_charged_to_the_gpu_of_the_stream(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(32 * MIB, 64 * MIB)
    container.python("""
c = Cuda(device=1)
stream = ctypes.c_void_p()
c.check("cuStreamCreate", ctypes.byref(stream), 0)
c.use(0)
assert c.allocate(64 * MIB + 1, "cuMemAllocAsync", stream)[0] == OUT_OF_MEMORY
assert c.allocate(64 * MIB, "cuMemAllocAsync", stream)[0] == SUCCESS
assert c.info()[0] == 32 * MIB
pool = ctypes.c_void_p()
c.check("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(on_device(0)))
assert c.allocate(32 * MIB, "cuMemAllocFromPoolAsync", pool, stream)[0] == SUCCESS
assert c.info()[0] == 0
""")


def test_a_gpu_that_the_share_does_not_have_gives_nothing(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python("""
c = Cuda(device=1)
assert c.allocate(1)[0] == NOT_PERMITTED
assert c.allocate(1, "cuMemAllocAsync", 0)[0] == NOT_PERMITTED
handle = ctypes.c_uint64()
assert c.call("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(on_device(1)), 0) == NOT_PERMITTED
""")


def test_a_limit_that_the_arbiter_changes_holds_at_once(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(10 * MIB)
    process = container.start(
        [
            "python3",
            "-c",
            "from cuda_client import *\nc = Cuda()\n"
            "for line in iter(input, 'end'): print(c.allocate(int(line))[0], c.info()[1], flush=True)",
        ]
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(size: int) -> str:
        process.stdin.write(f"{size}\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        return process.stdout.readline().strip()  # type: ignore[union-attr]

    assert ask(11 * MIB) == f"2 {10 * MIB}"
    arbiter.set_limit(0, 12 * MIB)
    assert ask(11 * MIB) == f"0 {12 * MIB}"
    arbiter.set_limit(0, 5 * MIB)
    assert ask(1) == f"2 {5 * MIB}"
    process.communicate("end\n", timeout=10)
    assert process.returncode == 0


def test_what_cannot_be_held_to_the_limits_is_refused_aloud(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    call = """
properties = Properties(type=1, location=Location(type=5, id=-2))
call = lambda: c.call("cuMemCreate", ctypes.byref(ctypes.c_uint64()), 2 * MIB, ctypes.byref(properties), 0)
"""
    result = container.run(["python3", "-c", f"from cuda_client import *\nc = Cuda()\n{call}\nprint(call(), call())"])
    assert result.stdout.split() == ["801", "801"]
    told = [line for line in result.stderr.splitlines() if "is refused" in line]
    assert len(told) == 1, result.stderr
