"""A CUDA program for the pods of `test_isolations.py`, by the driver's API alone: isolated.py VERB [NAME=VALUE ...].

With variables, they are its only environment.

sees        print whether this is an MPS client, and how many milliseconds a kernel takes that a whole GPU runs in 50
memory      print how many bytes it may use
works       run such kernels without a pause, print their number as each ends, and CUDA's error; SIGTERM ends it
insists     the same, and ignore SIGTERM, as a container's first process without a handler does
holds       allocate half of what it may, and print now and then what it sees, as JSON; SIGTERM ends it
faults      run a kernel that fails, and print CUDA's error
stays       wait for SIGTERM
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import sys

CLIENT_OF_MPS = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED
Pointer = ctypes.c_void_p


class Cuda:
    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        context = Pointer()
        self.check("cuInit", 0)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.check("cuCtxSetCurrent", context)

    def check(self, name: str, *arguments: object) -> None:
        error = self.library[name](*arguments)
        if error:
            sys.exit(f"{name} {error}")

    def made(self, name: str, *arguments: object) -> Pointer:
        value = Pointer()
        self.check(name, ctypes.byref(value), *arguments)
        return value

    def kernel(self, name: bytes) -> Pointer:
        return self.made("cuModuleGetFunction", self.made("cuModuleLoadData", b"image"), name)

    def is_client(self) -> int:
        attribute = ctypes.c_int()
        self.check("cuDeviceGetAttribute", ctypes.byref(attribute), CLIENT_OF_MPS, 0)
        return attribute.value

    def memory(self) -> tuple[int, int]:
        """Return the free and the total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def launch(self, kernel: Pointer) -> None:
        self.check("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)


def sees() -> None:
    cuda, elapsed = Cuda(), ctypes.c_float()
    kernel, start, end = cuda.kernel(b"k_50ms"), cuda.made("cuEventCreate", 0), cuda.made("cuEventCreate", 0)
    # All is queued before the word is written, so a late process does not delay the GPU.
    word = cuda.made("cuMemHostAlloc", 4, 0)
    value = ctypes.c_uint32.from_address(word.value or 0)
    value.value = 0
    cuda.check("cuStreamWaitValue32_v2", None, word, 1, 1)
    cuda.check("cuEventRecord", start, None)
    cuda.launch(kernel)
    cuda.check("cuEventRecord", end, None)
    value.value = 1
    cuda.check("cuCtxSynchronize")
    cuda.check("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
    print(cuda.is_client(), round(elapsed.value))


def memory() -> None:
    print(Cuda().memory()[1])


def works(*, ends: bool = True) -> None:
    cuda, asked = Cuda(), list[int]()
    kernel = cuda.kernel(b"k_50ms")
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number) if ends else None)
    for count in itertools.count(1):
        cuda.launch(kernel)
        cuda.check("cuCtxSynchronize")
        print(count, flush=True)
        if asked:
            return


def insists() -> None:
    works(ends=False)


def holds() -> None:
    cuda, asked = Cuda(), list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    cuda.check("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(cuda.memory()[0] // 2))
    kernel = cuda.kernel(b"k_5ms")
    while not asked:
        print(json.dumps({"client": cuda.is_client(), "total": cuda.memory()[1]}), flush=True)
        cuda.launch(kernel)
        cuda.check("cuCtxSynchronize")
        signal.sigtimedwait([], 0.5)


def faults() -> None:
    cuda = Cuda()
    cuda.launch(cuda.kernel(b"fault_1ms"))
    cuda.check("cuCtxSynchronize")


def stays() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a first process ignores it otherwise
    signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    if sys.argv[2:]:
        os.execve(sys.executable, [sys.executable, *sys.argv[:2]], dict(word.split("=") for word in sys.argv[2:]))
    verbs = (sees, memory, works, insists, holds, faults, stays)
    {verb.__name__: verb for verb in verbs}[sys.argv[1]]()
