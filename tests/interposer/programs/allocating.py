"""Programs that allocate once."""

from __future__ import annotations

from tests.interposer.cuda_client import SUCCESS, Cuda


def allocates(size_bytes: int, symbol: str = "cuMemAlloc_v2", *more: int) -> None:
    assert Cuda().allocate(size_bytes, symbol, *more)[0] == SUCCESS


def prints_what_comes(size_bytes: int, symbol: str = "cuMemAlloc_v2", *more: int) -> None:
    print(Cuda().allocate(size_bytes, symbol, *more)[0])
