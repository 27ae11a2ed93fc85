"""Programs that run beside others in one container."""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections.abc import Callable

from tests.interposer.cuda_client import (
    MIB,
    OUT_OF_MEMORY,
    SUCCESS,
    ArrayDescriptor,
    Cuda,
    allocation,
    in_threads,
    on_device,
)

Attempt = tuple[int, Callable[[], int]]  # the result, and a function that frees the memory


def storm() -> None:
    """Allocate and free at random forever. The GPU itself would show a total above the limit."""
    c, held = Cuda(), []
    print("started", flush=True)
    while True:
        result, pointer = c.allocate(random.randrange(1, 40 * MIB))
        if result == SUCCESS:
            held.append(pointer)
        if held and (result != SUCCESS or random.random() < 0.4):
            assert c.free(held.pop(random.randrange(len(held)))) == SUCCESS


def mixed_storm() -> None:
    """The same with every kind of memory: plain, pools that retain freed memory, handles, arrays, graphs."""
    c = Cuda()
    held: list[Callable[[], int]] = []
    c.check("cuMemPoolSetAttribute", c.default_pool(), 4, ctypes.byref(ctypes.c_uint64(random.choice((0, 1 << 60)))))

    def plain(size: int) -> Attempt:
        result, pointer = c.allocate(size)
        return result, lambda: c.free(pointer)

    def pooled(size: int) -> Attempt:
        result, pointer = c.allocate(size, "cuMemAllocAsync", 0)
        return result, lambda: c.call("cuMemFreeAsync", pointer, 0)

    def by_handle(size: int) -> Attempt:
        handle, size = ctypes.c_uint64(), -(-size // (2 * MIB)) * 2 * MIB
        result = c.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(on_device(0)), 0)
        return result, lambda: c.call("cuMemRelease", handle.value)

    def array(size: int) -> Attempt:
        made = ctypes.c_void_p()
        what = ArrayDescriptor(width=1024, height=size // 1024 + 1, format=1, channels=1)
        result = c.call("cuArrayCreate_v2", ctypes.byref(made), ctypes.byref(what))
        return result, lambda: c.call("cuArrayDestroy", made)

    def graph(size: int) -> Attempt:
        made, what = c.made("cuGraphCreate", 0), allocation(size)
        c.made("cuGraphAddMemAllocNode", made, None, 0, ctypes.byref(what))
        executable = c.made("cuGraphInstantiateWithFlags", made, 0)
        return c.call("cuGraphLaunch", executable, 0), lambda: c.call("cuMemFreeAsync", what.pointer, 0)

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


def allocates_in_two_threads(size: int) -> None:
    """Allocate in one thread at once, and in another after a line of input. Each prints its name and result."""
    c = Cuda()

    def allocate(name: str) -> None:
        c.use(0)
        print(name, c.allocate(size)[0], flush=True)

    threads = [threading.Thread(target=allocate, args=(name,)) for name in ("one", "other")]
    threads[0].start()
    input()
    threads[1].start()
    for thread in threads:
        thread.join()


def forks() -> None:
    """In the child NVML works and CUDA does not; the parent is not affected."""
    c = Cuda()
    assert c.allocate(100 * MIB)[0] == SUCCESS
    child = os.fork()
    if child == 0:
        import pynvml  # imported only here, because it is slow

        pynvml.nvmlInit()
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
        assert memory.used == 100 * MIB
        assert c.allocate(1)[0] not in (SUCCESS, OUT_OF_MEMORY)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert c.info()[0] == 156 * MIB
    assert c.allocate(156 * MIB)[0] == SUCCESS


def fills_with_threads() -> None:
    c = Cuda()
    granted: list[int] = []

    def work() -> None:
        c.use(0)
        while c.allocate(MIB)[0] == SUCCESS:
            granted.append(MIB)

    in_threads(work, 8)
    assert sum(granted) <= 256 * MIB
    while c.allocate(MIB)[0] == SUCCESS:
        granted.append(MIB)
    assert sum(granted) == 256 * MIB


def goes_on_without_an_arbiter() -> None:
    c = Cuda()
    assert c.allocate(100 * MIB)[0] == SUCCESS
    print("ready", flush=True)
    input()
    assert c.allocate(156 * MIB)[0] == SUCCESS
    assert c.allocate(1)[0] == OUT_OF_MEMORY
    assert c.allocate(1)[0] == OUT_OF_MEMORY
