"""Clients of MPS."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

from tests.interposer.cuda_client import Cuda


def runs_a_kernel(name: str) -> None:
    """Run a kernel on request, and print how many milliseconds that took by the GPU's clock.

    All work is queued before the word that it waits for is written, so a late process does not delay the GPU.
    """
    c = Cuda()
    kernel, start, end = c.kernel(name), c.made("cuEventCreate", 0), c.made("cuEventCreate", 0)
    word = c.made("cuMemHostAlloc", 4, 0)
    value = ctypes.c_uint32.from_address(word.value or 0)
    value.value = 0
    c.check("cuStreamWaitValue32_v2", None, word, 1, 1)
    c.check("cuEventRecord", start, None)
    c.launch(kernel)
    c.check("cuEventRecord", end, None)
    print("ready", flush=True)
    sys.stdin.readline()
    value.value = 1
    c.check("cuCtxSynchronize")
    elapsed = ctypes.c_float()
    c.check("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
    print(elapsed.value, flush=True)


def runs_steps(name: str, steps: int, excluded: int, start: str) -> None:
    """Run equal kernels, one after another, and print how many milliseconds each took on average.

    All are queued before the first word of the file `start` becomes 1, and the first and last `excluded` ones do not
    count, so a late process changes nothing.
    """
    c = Cuda()
    kernel, events = c.kernel(name), [c.made("cuEventCreate", 0) for _ in range(steps + 1)]
    with Path(start).open("r+b") as file:
        shared = ctypes.c_uint32.from_buffer(mmap.mmap(file.fileno(), mmap.PAGESIZE))
    word = ctypes.addressof(shared)
    c.check("cuMemHostRegister_v2", word, mmap.PAGESIZE, 0)
    c.check("cuStreamWaitValue32_v2", None, word, 1, 1)
    for event in events:
        c.check("cuEventRecord", event, None)
        c.launch(kernel)
    print("ready", flush=True)
    c.check("cuCtxSynchronize")
    elapsed = ctypes.c_float()
    c.check("cuEventElapsedTime", ctypes.byref(elapsed), events[excluded], events[-1 - excluded])
    print(elapsed.value / (steps - 2 * excluded), flush=True)


def obeys(device: int) -> None:
    """Create a context, and then do what each line of input says; answer with the number of CUDA's error, or a value."""
    library = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    results = [library.cuInit(0)]
    if results == [0]:
        results.append(library.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    print(*results, flush=True)
    if any(results):
        return
    c = Cuda(device=None)
    for line in sys.stdin:
        print(_do(c, device, *line.split()), flush=True)


def _do(c: Cuda, device: int, verb: str, word: str = "") -> int:
    value = ctypes.c_int()
    match verb:
        case "launch":
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            if (result := c.call("cuModuleLoadData", ctypes.byref(module), b"image")) != 0:
                return result
            c.check("cuModuleGetFunction", ctypes.byref(function), module, word.encode())
            return c.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        case "wait":
            return c.call("cuCtxSynchronize")
        case "query":
            return c.call("cuStreamQuery", None)
        case "allocate":
            return c.allocate(int(word) << 30)[0]
        case "used":
            free_bytes, total_bytes = c.info()
            return (total_bytes - free_bytes) >> 30
        case "context":
            return c.call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, device)
        case "contexts":
            return sum(_do(c, device, "context") == 0 for _ in range(int(word)))
        case "attribute":
            c.check("cuDeviceGetAttribute", ctypes.byref(value), int(word), device)
            return value.value
    raise SystemExit(f"unknown: {verb}")
