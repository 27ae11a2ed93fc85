"""Pools are charged for what they have of the GPU, whatever they have handed out of it.

The pools of simulated GPUs take pieces of 32 MiB, and give back what they need not keep when the program waits.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import CLIENT_PRELUDE, Container, finishing

LIMIT = 256 * MIB
FOR_EVER = (1 << 64) - 1
PRELUDE = f"""
c = Cuda()
pool = c.default_pool()
used = lambda: {LIMIT // MIB} - c.info()[0] // MIB
keep = lambda n: c.check("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(n)))
new = lambda mib, stream=0: c.allocate(mib * MIB, "cuMemAllocAsync", stream)
drop = lambda pointer, stream=0: c.check("cuMemFreeAsync", pointer, stream)
wait = lambda: c.check("cuCtxSynchronize")
def attribute(which):
    value = ctypes.c_uint64()
    c.check("cuMemPoolGetAttribute", pool, which, ctypes.byref(value))
    return value.value // MIB
"""


def test_a_pool_is_charged_by_the_pieces_that_it_takes(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
assert new(1)[0] == SUCCESS
assert used() == 32 == attribute(5)
assert [new(1)[0] for _ in range(31)] == [SUCCESS] * 31
assert used() == 32
assert new(1)[0] == SUCCESS
assert used() == 64
"""
    )
    assert arbiter.reclaims == 0


def test_what_a_pool_keeps_stays_charged_until_it_is_trimmed(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + f"""
keep({FOR_EVER})
_, pointer = new(100)
drop(pointer)
wait()
assert used() == 128, "kept"
assert new(100)[0] == SUCCESS
assert used() == 128, "and used again"
assert new(20)[0] == SUCCESS
c.check("cuMemPoolTrimTo", pool, 0)
assert used() == 128
"""
    )


@pytest.mark.parametrize(
    "wait",
    [
        "c.check('cuCtxSynchronize')",
        "c.check('cuStreamSynchronize', 0)",
        "c.check('cuStreamSynchronize_ptsz', 0)",
        "c.check('cuEventSynchronize', c.made('cuEventCreate', 0))",
    ],
)
def test_others_have_what_a_pool_gave_back_when_its_program_waited(
    container: Container, make_arbiter: ArbiterMaker, wait: str
) -> None:
    arbiter = make_arbiter(LIMIT)
    code = f"""
_, pointer = new(200)
drop(pointer)
print("freed", flush=True)
input()
{wait}
print("waited", flush=True)
input()
"""
    with finishing(container.start([sys.executable, "-c", CLIENT_PRELUDE + PRELUDE + code])) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "freed\n"
        assert sum(arbiter.charged()) == 224 * MIB
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "waited\n", process.communicate(timeout=10)
        assert sum(arbiter.charged()) == 0


def test_a_pool_gives_way_to_other_memory_before_anything_is_refused(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + f"""
keep({FOR_EVER})
_, pointer = new(200)
drop(pointer)
wait()
assert used() == 224
result, plain = c.allocate(250 * MIB)
assert result == SUCCESS
assert used() == 250
assert new(1)[0] == OUT_OF_MEMORY
assert c.free(plain) == SUCCESS
assert new(256)[0] == SUCCESS
"""
    )


def test_a_full_pool_hands_out_again_what_was_freed_in_the_same_stream(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + f"""
import time
keep({FOR_EVER})
kernel, stream = c.kernel("spin_300ms"), c.made("cuStreamCreate", 0)
_, pointer = new(250, stream)
begin = time.monotonic()
for _ in range(5):
    c.launch(kernel, stream)
    drop(pointer, stream)
    result, pointer = new(250, stream)
    assert result == SUCCESS
assert time.monotonic() - begin < 1, "nobody waited for the kernels"
assert used() == 256
"""
    )


def test_a_full_pool_waits_for_what_another_stream_has_freed(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + f"""
keep({FOR_EVER})
kernel, stream, other = c.kernel("spin_100ms"), c.made("cuStreamCreate", 0), c.made("cuStreamCreate", 0)
_, pointer = new(250, stream)
c.launch(kernel, stream)
drop(pointer, stream)
assert new(250, other)[0] == SUCCESS
assert used() == 256
"""
    )


def test_a_pool_that_took_more_than_fits_gives_it_back(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
result, plain = c.allocate(240 * MIB)
assert new(1)[0] == OUT_OF_MEMORY, "a piece is 32 MiB"
assert used() == 240
assert attribute(5) == 0
assert c.free(plain) == SUCCESS
assert new(256)[0] == SUCCESS
"""
    )


def test_a_destroyed_pool_is_charged_until_its_last_block_is_freed(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
own = c.made("cuMemPoolCreate", ctypes.byref(on_device(0)))
assert c.call("cuMemPoolDestroy", pool) != SUCCESS, "the device's own"
blocks = [c.allocate(50 * MIB, "cuMemAllocFromPoolAsync", own, 0)[1] for _ in range(2)]
assert used() == 128
c.check("cuDeviceSetMemPool", 0, own)
assert new(20)[0] == SUCCESS, "it is the device's now"
assert attribute(5) == 0
c.check("cuMemPoolDestroy", own)
assert used() == 128
drop(blocks[0])
assert new(1)[0] == SUCCESS, "the device has its first pool again"
assert attribute(5) == 32 and used() == 160
assert c.free(blocks[1]) == SUCCESS
assert used() == 160, "one is left"
empty = c.made("cuMemPoolCreate", ctypes.byref(on_device(0)))
_, pointer = c.allocate(90 * MIB, "cuMemAllocFromPoolAsync", empty, 0)
assert used() == 256
drop(pointer)
c.check("cuMemPoolDestroy", empty)
assert used() == 160
"""
    )


def test_a_free_that_fails_leaves_a_pool_as_it_was(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
_, pointer = new(10)
assert c.call("cuMemFreeAsync", pointer + 4096, 0) != SUCCESS
assert used() == 32
assert c.free(pointer) == SUCCESS
wait()
assert used() == 0
assert c.free(pointer) != SUCCESS
"""
    )


def test_threads_that_share_a_pool_leave_it_charged_for_what_it_has(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + f"""
import random, threading
keep({FOR_EVER})
failures = []
def work(seed):
    c.use(0)
    dice, held = random.Random(seed), []
    for _ in range(150):
        result, pointer = new(dice.randrange(1, 60), 2)
        if result == SUCCESS: held.append(pointer)
        elif result != OUT_OF_MEMORY: failures.append(result)
        if held and (result or dice.random() < 0.5): drop(held.pop(), 2)
    for pointer in held: drop(pointer, 2)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
assert 0 < used() == attribute(5) <= 256 and attribute(7) == 0
c.check("cuMemPoolTrimTo", pool, 0)
assert used() == 0
print("done")
"""
    )
    assert arbiter.charged() == []


def test_a_killed_process_leaves_no_pool_behind(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    code = f"keep({FOR_EVER})\n_, pointer = new(250)\ndrop(pointer)\nwait()\nprint('kept', flush=True)\ninput()"
    for _ in range(3):
        with finishing(container.start([sys.executable, "-c", CLIENT_PRELUDE + PRELUDE + code])) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "kept\n"
        container.python(PRELUDE + "assert new(256)[0] == SUCCESS")


def test_a_driver_that_cannot_tell_how_large_a_pool_is_gives_no_memory_of_pools(
    container: Container, make_arbiter: ArbiterMaker, tmp_path: object
) -> None:
    make_arbiter(LIMIT)
    for gpu in container.gpus.glob("gpu*"):
        version_at = 16  # after magic, version, size and index
        with gpu.open("r+b") as image:
            image.seek(version_at + 4)
            assert int.from_bytes(image.read(4), "little") >= 12000
            image.seek(version_at + 4)
            image.write((11020).to_bytes(4, "little"))
    result: subprocess.CompletedProcess[str] = container.run(
        [sys.executable, "-c", CLIENT_PRELUDE + "c = Cuda()\nprint(c.allocate(1, 'cuMemAllocAsync', 0)[0])"]
    )
    assert result.stdout.split() == ["801"]
    assert "before CUDA 11.3" in result.stderr
