"""Messages as bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter import wire
from gpushare import contract

HEADER = struct.Struct(contract.WIRE_HEADER)


def body(message: bytes, kind: int) -> bytes:
    magic, version, found, size, reserved = HEADER.unpack_from(message)
    assert (magic, version, found, size, reserved) == (
        contract.WIRE_MAGIC,
        contract.WIRE_VERSION,
        kind,
        len(message),
        0,
    )
    assert len(message) <= contract.WIRE_MAX
    return message[HEADER.size :]


def test_a_welcome() -> None:
    assert body(wire.welcome(gpu_count=2, slot=7), contract.MESSAGE_WELCOME) == struct.pack("<II", 2, 7)


@given(st.text(max_size=400))
def test_a_refusal_is_the_sentence_as_far_as_it_fits_and_ends_with_a_nul(sentence: str) -> None:
    found = body(wire.refused(sentence), contract.MESSAGE_REFUSED)
    assert len(found) == 256
    assert found[-1] == 0
    shown = found.rstrip(b"\0").decode()  # never cut within a character
    assert sentence.rstrip("\0").startswith(shown)
    if len(sentence.encode()) < 256:
        assert shown == sentence.rstrip("\0")


@pytest.mark.parametrize(("freed", "told"), [(0, 0), (1 << 40, 1 << 40), (1 << 70, (1 << 64) - 1)])
def test_freed_bytes(freed: int, told: int) -> None:
    assert body(wire.reclaimed(freed), contract.MESSAGE_RECLAIMED) == struct.pack("<Q", told)


def hello(version: bytes = b"0.1.0") -> bytes:
    payload = struct.pack(contract.WIRE_HELLO, version)
    return (
        HEADER.pack(contract.WIRE_MAGIC, contract.WIRE_VERSION, contract.MESSAGE_HELLO, HEADER.size + len(payload), 0)
        + payload
    )


def test_a_hello_is_read() -> None:
    assert wire.read(hello()) == contract.MESSAGE_HELLO
    assert wire.library_version(hello()) == "0.1.0"
    assert wire.library_version(hello(b"\xff" * 32)) == "�" * 32


@given(st.binary(max_size=600))
def test_other_bytes_are_no_message(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.read(data)


@given(st.integers(0, len(hello()) - 1), st.integers(1, 255))
def test_a_hello_with_one_byte_changed_is_read_or_refused_but_never_fails(position: int, change: int) -> None:
    data = bytearray(hello())
    data[position] ^= change
    try:
        assert wire.read(bytes(data)) == contract.MESSAGE_HELLO
    except (wire.WireError, wire.VersionError):
        assert position < HEADER.size
