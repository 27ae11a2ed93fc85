"""Programs that look up CUDA's functions in many ways."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.interposer.cuda_client import PER_THREAD, QUERIES, SUCCESS, Cuda

MAPS = Path("/proc/self/maps")


def forms() -> None:
    d, p = Cuda(), Cuda(proc=True)
    for symbol in QUERIES:
        assert d.address(symbol) == p.address(symbol) is not None, symbol
    forms = [p.proc_address("cuMemAllocAsync", 11020, flags) for flags in (0, PER_THREAD)]
    assert len(set(forms)) == 2
    assert p.proc_address("cuMemAlloc", 3010) != p.proc_address("cuMemAlloc", 3020)
    launches = [p.proc_address("cuLaunchKernel", version, flags) for version, flags in ((4000, 0), (7000, PER_THREAD))]
    assert launches == [d.address("cuLaunchKernel"), d.address("cuLaunchKernel_ptsz")]


def searches_for_the_search() -> None:
    d, p = Cuda(), Cuda(proc=True)
    assert p.proc_address("cuGetProcAddress", 11030) == d.address("cuGetProcAddress")
    assert p.proc_address("cuGetProcAddress", 12000) == d.address("cuGetProcAddress_v2")
    assert p.proc_address("", 0) is None
    assert p.proc_address("cuMemAlloc", 1000) is None
    first = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
    pointer = ctypes.c_void_p()
    assert first(d.address("cuGetProcAddress") or 0)(b"cuMemAlloc", ctypes.byref(pointer), 3020, 0) == SUCCESS
    assert pointer.value == d.address("cuMemAlloc_v2")


def homes() -> None:
    def home(address: int | None) -> str:
        assert address is not None
        for line in MAPS.read_text().splitlines():
            begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            if begin <= address < end:
                return line.split("/")[-1]
        raise AssertionError(hex(address))

    for c in Cuda(), Cuda(proc=True):
        for name in "cuGetExportTable", "cuDriverGetVersion", "cuStreamQuery", "cuGetErrorName":
            assert home(c.address(name)) == "libcuda.so.1", name
        for name in "cuMemAlloc_v2", "cuLaunchKernel", "cuInit":
            assert home(c.address(name)) == "libgpushare.so", name
    table = ctypes.c_void_p(1)
    # simulated drivers do not export it
    assert c.call("cuGetExportTable", ctypes.byref(table), b"0123456789abcdef") == 500
    assert table.value is None


def finds_every_hook(names: list[str]) -> None:
    d = Cuda()
    addresses = [address for address in map(d.address, names) if address]  # the driver is older than CUDA 13
    assert len(addresses) > 100 and len(set(addresses)) == len(addresses)
    ours = [line for line in MAPS.read_text().splitlines() if "libgpushare.so" in line and " r-xp " in line]
    begin, end = (int(bound, 16) for bound in ours[0].split()[0].split("-"))
    assert all(begin <= address < end for address in addresses)
    assert not [name for name in names if d.address(name + "_") or d.address(name[:-1] + "~")]
