"""Programs with streams that wait for the host."""

from __future__ import annotations

import ctypes

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda
from tests.interposer.programs.launching import kernel, launch, say


def waits_for_a_word() -> None:
    c = Cuda()
    waiting, other, kernel = c.made("cuStreamCreate", 1), c.made("cuStreamCreate", 1), c.kernel("k_100us")
    _, word = c.allocate(64)
    c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 1)
    c.check("cuStreamWaitValue32_v2", waiting, word, ctypes.c_uint(1), 0)
    c.launch(kernel, waiting)
    result, pointer = c.allocate(32 * MIB, "cuMemAllocAsync", waiting)
    assert result == SUCCESS and c.info()[0] < 32 * MIB
    assert c.allocate(33 * MIB)[0] == OUT_OF_MEMORY
    c.launch(kernel, other)
    c.check("cuStreamSynchronize", other)
    assert c.call("cuStreamQuery", waiting) == 600
    c.check("cuMemsetD32Async", word, ctypes.c_uint(1), 1, other)
    c.check("cuMemFreeAsync", pointer, waiting)
    c.check("cuStreamSynchronize", waiting)
    assert c.info()[0] >= 64 * MIB - 64


def function_of_the_host() -> None:
    c = Cuda()
    function, called = kernel(c, 1000), []
    host = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data))
    stream = c.made("cuStreamCreate", 1)
    assert launch(c, function, "cuLaunchKernel", stream) == 0
    c.check("cuLaunchHostFunc", stream, host, 1)
    say("launched")
    input()
    c.check("cuStreamSynchronize", stream)
    assert called == [1]
