"""Programs that look up functions which the library does not know."""

from __future__ import annotations

import ctypes
from typing import Any

PER_THREAD = 2


def asks() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    arguments: list[Any] = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    driver.cuGetProcAddress.argtypes = arguments
    driver.cuGetProcAddress_v2.argtypes = [*arguments, ctypes.c_void_p]
    for name, version, flags in (
        ("cuMemAlloc", 12040, 0),
        ("cuMemAlloc", 12040, PER_THREAD),
        ("cuMemAlloc", 99000, 0),
        ("cuMemFree", 12040, 0),
        ("cuStreamQuery", 12040, 0),
    ):
        pointer, status = ctypes.c_void_p(1), ctypes.c_int(-1)
        result = driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(pointer), version, flags, ctypes.byref(status))
        older = ctypes.c_void_p(1)
        assert driver.cuGetProcAddress(name.encode(), ctypes.byref(older), version, flags) == result
        assert older.value == pointer.value
        assert driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(older), version, flags, None) == result
        print(name, version, flags, result, status.value, "nothing" if pointer.value is None else "a function")


def looks() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    for name in ("cuMemAlloc_v9", "cuMemAlloc_v8", "cuMemAlloc_v2"):
        try:
            print(name, getattr(driver, name).__name__ == name)
        except AttributeError as error:
            print(error)
