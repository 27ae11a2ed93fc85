"""Tests on the library's own code that granted charges together never exceed the limit."""

from __future__ import annotations

import ctypes
import mmap
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract
from tests.interposer.container import BUILD, ROOT

PURE = BUILD / "interposer" / "libpure.so"
SLOT_COUNT_OFFSET = 4
MEMORY_OFFSET = struct.calcsize(contract.LIMITS_HEADER) + 16


class Quota(ctypes.Structure):
    """The C structure quota_t."""

    _fields_ = (
        ("ledger", ctypes.c_void_p),
        ("limits", ctypes.c_void_p),
        ("gpu", ctypes.c_uint),
        ("slot", ctypes.c_uint),
        ("certain_slot", ctypes.c_uint),
    )


class Pages:
    """A limits page and one ledger page, with the functions under test."""

    def __init__(self, limit: int, slots: int) -> None:
        self.limits = mmap.mmap(-1, contract.PAGE_SIZE)
        self.ledger = mmap.mmap(-1, contract.PAGE_SIZE)
        self.set(limit, slots)
        self._library = ctypes.CDLL(str(PURE))
        self._library.quota_charge.restype = ctypes.c_bool
        self._library.quota_used_bytes.restype = ctypes.c_uint64
        for name in ("quota_charge", "quota_refund", "quota_certain", "quota_uncertain"):
            getattr(self._library, name).argtypes = [ctypes.c_void_p, ctypes.c_uint64]

    def set(self, limit: int, slots: int) -> None:
        struct.pack_into("<I", self.limits, SLOT_COUNT_OFFSET, slots)
        struct.pack_into("<Q", self.limits, MEMORY_OFFSET, limit)

    def quota(self, slot: int) -> Quota:
        addresses = [ctypes.addressof(ctypes.c_char.from_buffer(page)) for page in (self.ledger, self.limits)]
        return Quota(*addresses, 0, slot, contract.CERTAIN_SLOT)

    def charge(self, slot: int, size: int) -> bool:
        return bool(self._library.quota_charge(ctypes.byref(self.quota(slot)), size))

    def refund(self, slot: int, size: int) -> None:
        self._library.quota_refund(ctypes.byref(self.quota(slot)), size)

    def settle(self, slot: int, size: int) -> None:
        self._library.quota_certain(ctypes.byref(self.quota(slot)), size)

    def unsettle(self, slot: int, size: int) -> None:
        self._library.quota_uncertain(ctypes.byref(self.quota(slot)), size)

    def certain(self, slot: int) -> tuple[int, int]:
        (word,) = struct.unpack_from(contract.LEDGER_SLOT, self.ledger, 8 * (slot + contract.CERTAIN_SLOT))
        return word % (1 << contract.CERTAIN_BITS), word >> contract.CERTAIN_BITS

    def used(self) -> int:
        return int(self._library.quota_used_bytes(ctypes.byref(self.quota(0))))


sizes = st.integers(0, 2**64 - 1) | st.integers(0, 100)


@pytest.mark.slow
@given(
    limit=sizes,
    steps=st.lists(st.tuples(st.integers(0, 3), sizes, st.booleans()), max_size=30),
)
def test_charge_without_races_is_granted_exactly_if_it_fits(limit: int, steps: list[tuple[int, int, bool]]) -> None:
    pages = Pages(limit, 4)
    held: list[tuple[int, int]] = []
    for slot, size, refund in steps:
        if refund and held:
            pages.refund(*held.pop())
        fits = sum(charge for _, charge in held) + size <= limit
        assert pages.charge(slot, size) == fits
        if fits:
            held.append((slot, size))
        assert pages.used() == sum(charge for _, charge in held)


def test_slot_beyond_the_count_is_ignored() -> None:
    pages = Pages(100, 2)
    assert pages.charge(1, 60)
    pages.set(100, 1)
    assert pages.used() == 0
    pages.set(100, 2)
    assert not pages.charge(0, 41)
    assert pages.charge(0, 40)


def test_nothing_is_granted_when_the_sum_overflows() -> None:
    pages = Pages(2**64 - 1, 3)
    struct.pack_into("<QQ", pages.ledger, 8, 2**63, 2**63)
    assert not pages.charge(0, 1)


@pytest.mark.slow
def test_processes_together_are_never_granted_more_than_the_limit(tmp_path: Path) -> None:
    program = tmp_path / "hammer"
    sources = [ROOT / "tests" / "interposer" / "hammer.c", ROOT / "interposer" / "share" / "quota.c"]
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "interposer"]
    subprocess.run(["gcc", *flags, "-o", program, *sources], check=True)
    result = subprocess.run([program, "4", "1000000"], capture_output=True, text=True, check=True, timeout=30)
    most, left = map(int, result.stdout.split())
    assert 60 <= most <= 90, "three of 30 fit into 100"
    assert left == 0


@pytest.mark.slow
@given(sizes=st.lists(st.integers(0, 1 << 30)), cleared=st.booleans())
def test_certain_bytes_come_with_a_count_of_decreases(sizes: list[int], *, cleared: bool) -> None:
    pages = Pages(100, 2)
    for size in sizes:
        pages.settle(1, size)
    assert pages.certain(1) == (sum(sizes), 0)
    if cleared:
        pages.ledger[:] = bytes(contract.PAGE_SIZE)
    for freed, size in enumerate(sizes, 1):
        pages.unsettle(1, size)
        assert pages.certain(1) == (0 if cleared else sum(sizes[freed:]), freed)
    assert pages.used() == 0
    pages.settle(contract.CERTAIN_SLOT, 5)  # not a process's slot
    assert not any(pages.ledger[8 * (contract.CERTAIN_SLOT + 2) :])
