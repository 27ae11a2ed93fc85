"""Tests that the table of pointers behaves like a dictionary."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.interposer.container import BUILD

PURE = BUILD / "interposer" / "libpure.so"


class Entry(ctypes.Structure):
    """The C structure entry_t."""

    _fields_ = (
        ("key", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("owner", ctypes.c_uint64),
        ("gpu", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
    )

    def value(self) -> tuple[int, int]:
        return (self.bytes, self.owner)


class Table:
    """A zeroed table_t, which equals TABLE_INITIALIZER."""

    def __init__(self) -> None:
        self._table = ctypes.create_string_buffer(256)
        self._library = ctypes.CDLL(str(PURE))
        for name in ("table_put", "table_get", "table_remove", "table_containing", "table_remove_owned"):
            getattr(self._library, name).restype = ctypes.c_bool

    def put(self, key: int, value: tuple[int, int]) -> tuple[int, int] | None:
        old = Entry()
        entry = Entry(key=key, bytes=value[0], owner=value[1])
        assert self._library.table_put(self._table, ctypes.byref(entry), ctypes.byref(old))
        return old.value() if old.key else None

    def look(self, how: str, what: int) -> tuple[int, tuple[int, int]] | None:
        entry = Entry()
        hit = getattr(self._library, how)(self._table, ctypes.c_uint64(what), ctypes.byref(entry))
        return (entry.key, entry.value()) if hit else None

    def owned(self, owner: int) -> Iterator[int]:
        """Remove an owner's entries one by one, and yield their keys."""
        entry, place = Entry(), ctypes.c_size_t(0)
        take = self._library.table_remove_owned
        while take(self._table, ctypes.c_uint64(owner), ctypes.byref(entry), ctypes.byref(place)):
            yield entry.key

    def rename(self, before: int, after: int) -> None:
        self._library.table_change_owner(self._table, ctypes.c_uint64(before), ctypes.c_uint64(after), None)

    def forget(self) -> None:
        self._library.table_clear(self._table)


# Few keys, close and far apart, so that they repeat and collide.
keys = st.integers(1, 40) | st.integers(1, 40).map(lambda n: n << 21) | st.integers(1, 2**64 - 1)
values = st.tuples(st.integers(1, 2**40), st.integers(0, 3))
steps = st.tuples(st.sampled_from(["put", "remove", "get"]), keys, values)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(steps, max_size=120))
def test_table_agrees_with_a_dictionary(actions: list[tuple[str, int, tuple[int, int]]]) -> None:
    table, model = Table(), dict[int, tuple[int, int]]()
    for action, key, value in actions:
        if action == "put":
            assert table.put(key, value) == model.get(key)
            model[key] = value
            continue
        expected = (key, model[key]) if key in model else None
        assert table.look(f"table_{action}", key) == expected
        if action == "remove":
            model.pop(key, None)
    for key, value in model.items():
        assert table.look("table_get", key) == (key, value)
    table.forget()


def test_table_grows_and_shrinks_without_losing_entries() -> None:
    table = Table()
    addresses = [(n * 512) | 1 << 46 for n in range(5000)]
    for address in addresses:
        assert table.put(address, (512, 0)) is None
    for address in addresses[::2]:
        assert table.look("table_remove", address) == (address, (512, 0))
    for address in addresses[1::2]:
        assert table.look("table_get", address) == (address, (512, 0))
    for address in addresses[::2]:
        assert table.look("table_get", address) is None
    table.forget()
    assert table.look("table_get", addresses[1]) is None


def test_address_is_found_in_the_range_that_contains_it() -> None:
    table = Table()
    table.put(1000, (10, 1))
    table.put(2000, (10, 2))
    assert table.look("table_containing", 1009) == (1000, (10, 1))
    assert table.look("table_containing", 2000) == (2000, (10, 2))
    assert table.look("table_containing", 1010) is None
    assert table.look("table_containing", 999) is None
    table.forget()


def test_only_the_entries_of_an_owner_are_removed() -> None:
    table = Table()
    for key in range(1, 101):
        table.put(key, (key, key % 3))
    table.rename(1, 9)
    taken = set(table.owned(9))
    assert taken == {key for key in range(1, 101) if key % 3 == 1}
    assert all((table.look("table_get", key) is None) == (key in taken) for key in range(1, 101))
    table.forget()


def test_all_entries_are_removed_although_the_table_grows_meanwhile() -> None:
    table = Table()
    for key in range(1, 101):
        table.put(key, (key, 9))
    taken = []
    for key in table.owned(9):
        taken.append(key)
        table.put(1000 + 100 * len(taken), (1, 2))  # the table grows at 64, 128, …, which moves all entries
    assert sorted(taken) == list(range(1, 101))
    table.forget()
