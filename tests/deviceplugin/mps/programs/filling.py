"""Allocates as much GPU memory as it gets."""

from __future__ import annotations

import ctypes


def fills_by_the_gib() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer, count = ctypes.c_void_p(), ctypes.c_uint64(), 0
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0:
        count += 1
    print(count)
