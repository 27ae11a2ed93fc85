"""Programs that allocate from memory pools."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from typing import Any

from tests.interposer.cuda_client import MIB, NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS, Cuda, Location, on_device

LIMIT = 256 * MIB
FOR_EVER = (1 << 64) - 1
PINNED, MANAGED = 1, 2


class Pools(Cuda):
    """A client in a share of 256 MiB, with its GPU's pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = self.default_pool()

    def used(self) -> int:
        return (LIMIT - self.info()[0]) // MIB

    def keep(self, size_bytes: int) -> None:
        self.check("cuMemPoolSetAttribute", self.pool, 4, ctypes.byref(ctypes.c_uint64(size_bytes)))

    def new(self, mib: int, stream: Any = 0) -> tuple[int, int]:
        return self.allocate(mib * MIB, "cuMemAllocAsync", stream)

    def drop(self, pointer: int, stream: Any = 0) -> None:
        self.check("cuMemFreeAsync", pointer, stream)

    def wait(self) -> None:
        self.check("cuCtxSynchronize")

    def attribute(self, which: int) -> int:
        value = ctypes.c_uint64()
        self.check("cuMemPoolGetAttribute", self.pool, which, ctypes.byref(value))
        return value.value // MIB


def takes_all() -> None:
    assert Pools().new(256)[0] == SUCCESS


def takes_pieces() -> None:
    c = Pools()
    assert c.new(1)[0] == SUCCESS
    assert c.used() == 32 == c.attribute(5)
    assert [c.new(1)[0] for _ in range(31)] == [SUCCESS] * 31
    assert c.used() == 32
    assert c.new(1)[0] == SUCCESS
    assert c.used() == 64


def keeps_until_trimmed() -> None:
    c = Pools()
    c.keep(FOR_EVER)
    _, pointer = c.new(100)
    c.drop(pointer)
    c.wait()
    assert c.used() == 128, "kept"
    assert c.new(100)[0] == SUCCESS
    assert c.used() == 128, "and used again"
    assert c.new(20)[0] == SUCCESS
    c.check("cuMemPoolTrimTo", c.pool, 0)
    assert c.used() == 128


def frees_and_waits(symbol: str) -> None:
    c = Pools()
    waited_for = {"cuCtxSynchronize": [], "cuEventSynchronize": [c.made("cuEventCreate", 0)]}.get(symbol, [0])
    _, pointer = c.new(200)
    c.drop(pointer)
    print("freed", flush=True)
    input()
    c.check(symbol, *waited_for)
    print("waited", flush=True)
    input()


def fills_a_pool_of_a_place(symbol: str, kind: int) -> None:
    c = Pools()
    c.pool = c.made(symbol, ctypes.byref(Location(type=1, id=0)), kind)
    assert c.allocate(LIMIT + 1, "cuMemAllocFromPoolAsync", c.pool, 0)[0] == OUT_OF_MEMORY
    result, pointer = c.allocate(LIMIT, "cuMemAllocFromPoolAsync", c.pool, 0)
    assert result == SUCCESS
    assert c.allocate(1)[0] == OUT_OF_MEMORY
    print("filled", flush=True)
    input()
    c.drop(pointer)
    c.check("cuCtxSynchronize_v2", 0)
    assert c.attribute(5) == c.used() == 0
    print("freed", flush=True)


def takes_from_the_pool_of_another_gpu() -> None:
    c = Pools()
    pool = c.made("cuMemGetDefaultMemPool", ctypes.byref(Location(type=1, id=1)), PINNED)
    assert c.allocate(1, "cuMemAllocFromPoolAsync", pool, 0)[0] == NOT_PERMITTED


def gives_way() -> None:
    c = Pools()
    c.keep(FOR_EVER)
    _, pointer = c.new(200)
    c.drop(pointer)
    c.wait()
    assert c.used() == 224
    result, plain = c.allocate(250 * MIB)
    assert result == SUCCESS
    assert c.used() == 250
    assert c.new(1)[0] == OUT_OF_MEMORY
    assert c.free(plain) == SUCCESS
    assert c.new(256)[0] == SUCCESS


def frees_and_takes_in_a_stream() -> None:
    c = Pools()
    c.keep(FOR_EVER)
    kernel, stream = c.kernel("spin_300ms"), c.made("cuStreamCreate", 0)
    _, pointer = c.new(250, stream)
    begin = time.monotonic()
    for _ in range(5):
        c.launch(kernel, stream)
        c.drop(pointer, stream)
        result, pointer = c.new(250, stream)
        assert result == SUCCESS
    assert time.monotonic() - begin < 1, "no call waited for the kernels"
    assert c.used() == 256


def frees_and_takes_in_another_stream() -> None:
    c = Pools()
    c.keep(FOR_EVER)
    kernel, stream, other = c.kernel("spin_100ms"), c.made("cuStreamCreate", 0), c.made("cuStreamCreate", 0)
    _, pointer = c.new(250, stream)
    c.launch(kernel, stream)
    c.drop(pointer, stream)
    assert c.new(250, other)[0] == SUCCESS
    assert c.used() == 256


def takes_more_than_fits() -> None:
    c = Pools()
    _, plain = c.allocate(240 * MIB)
    assert c.new(1)[0] == OUT_OF_MEMORY, "pools grow by 32 MiB"
    assert c.used() == 240
    assert c.attribute(5) == 0
    assert c.free(plain) == SUCCESS
    assert c.new(256)[0] == SUCCESS


def takes_while_another_thread_is_refused() -> None:
    c = Pools()
    c.keep(FOR_EVER)
    assert c.allocate(120 * MIB)[0] == SUCCESS
    refused: list[int] = []

    def ask_for_too_much() -> None:
        c.use(0)
        refused.append(c.new(200, 2)[0])

    asking = threading.Thread(target=ask_for_too_much)
    asking.start()
    taken = 0
    while asking.is_alive():
        result, pointer = c.new(1)
        assert result == SUCCESS
        c.drop(pointer)
        taken += 1
    assert refused == [OUT_OF_MEMORY]
    print(taken, flush=True)


def destroys() -> None:
    c = Pools()
    own = c.made("cuMemPoolCreate", ctypes.byref(on_device(0)))
    assert c.call("cuMemPoolDestroy", c.pool) != SUCCESS, "the device's own"
    blocks = [c.allocate(50 * MIB, "cuMemAllocFromPoolAsync", own, 0)[1] for _ in range(2)]
    assert c.used() == 128
    c.check("cuDeviceSetMemPool", 0, own)
    assert c.new(20)[0] == SUCCESS, "it is the device's now"
    assert c.attribute(5) == 0
    c.check("cuMemPoolDestroy", own)
    assert c.used() == 128
    c.drop(blocks[0])
    assert c.new(1)[0] == SUCCESS, "the device has its first pool again"
    assert c.attribute(5) == 32 and c.used() == 160
    assert c.free(blocks[1]) == SUCCESS
    assert c.used() == 160, "one is left"
    empty = c.made("cuMemPoolCreate", ctypes.byref(on_device(0)))
    _, pointer = c.allocate(90 * MIB, "cuMemAllocFromPoolAsync", empty, 0)
    assert c.used() == 256
    c.drop(pointer)
    c.check("cuMemPoolDestroy", empty)
    assert c.used() == 160


def frees_wrongly() -> None:
    c = Pools()
    _, pointer = c.new(10)
    assert c.call("cuMemFreeAsync", pointer + 4096, 0) != SUCCESS
    assert c.used() == 32
    assert c.free(pointer) == SUCCESS
    c.wait()
    assert c.used() == 0
    assert c.free(pointer) != SUCCESS


def shares_with_threads() -> None:
    c = Pools()
    c.keep(FOR_EVER)
    failures: list[int] = []

    def work(seed: int) -> None:
        c.use(0)
        dice, held = random.Random(seed), []
        for _ in range(150):
            result, pointer = c.new(dice.randrange(1, 60), 2)
            if result == SUCCESS:
                held.append(pointer)
            elif result != OUT_OF_MEMORY:
                failures.append(result)
            if held and (result or dice.random() < 0.5):
                c.drop(held.pop(), 2)
        for pointer in held:
            c.drop(pointer, 2)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert 0 < c.used() == c.attribute(5) <= 256 and c.attribute(7) == 0
    c.check("cuMemPoolTrimTo", c.pool, 0)
    assert c.used() == 0
    print("done")


def keeps_until_it_is_killed() -> None:
    c = Pools()
    c.keep(FOR_EVER)
    _, pointer = c.new(250)
    c.drop(pointer)
    c.wait()
    print("kept", flush=True)
    input()
