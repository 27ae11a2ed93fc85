"""The encoding of messages."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter import wire
from gpushare import contract

HEADER = struct.Struct(contract.WIRE_HEADER)


def body(message: bytes, kind: int) -> bytes:
    magic, version, message_kind, size, reserved = HEADER.unpack_from(message)
    assert (magic, version, message_kind, size, reserved) == (
        contract.WIRE_MAGIC,
        contract.WIRE_OLDEST,
        kind,
        len(message),
        0,
    )
    assert len(message) <= contract.WIRE_MAX
    return message[HEADER.size :]


def test_a_welcome() -> None:
    assert body(wire.welcome(gpu_count=2, slot=7), contract.MESSAGE_WELCOME) == struct.pack("<II", 2, 7)


@given(st.text(max_size=400))
def test_a_refusal_is_truncated_to_fit_and_nul_terminated(sentence: str) -> None:
    payload = body(wire.refused(sentence), contract.MESSAGE_REFUSED)
    assert len(payload) == 256
    assert payload[-1] == 0
    shown = payload.rstrip(b"\0").decode()  # never cut within a character
    assert sentence.rstrip("\0").startswith(shown)
    if len(sentence.encode()) < 256:
        assert shown == sentence.rstrip("\0")


@pytest.mark.parametrize(("freed", "told"), [(0, 0), (1 << 40, 1 << 40), (1 << 70, (1 << 64) - 1)])
def test_freed_bytes(freed: int, told: int) -> None:
    assert body(wire.reclaimed(freed), contract.MESSAGE_RECLAIMED) == struct.pack("<Q", told)


def hello(
    library: bytes = b"0.1.0", *, oldest: int = contract.WIRE_OLDEST, newest: int = 0, more: bytes = b""
) -> bytes:
    payload = struct.pack(contract.WIRE_HELLO, library) + more
    size = HEADER.size + len(payload)
    return HEADER.pack(contract.WIRE_MAGIC, oldest, contract.MESSAGE_HELLO, size, newest) + payload


def test_a_hello_is_read() -> None:
    assert wire.read(hello()) == contract.MESSAGE_HELLO
    assert wire.hello(hello()).library == "0.1.0"
    assert wire.hello(hello(b"\xff" * 32)).library == "�" * 32


@given(st.binary(max_size=400))
def test_additions_of_a_newer_library_to_a_message_are_ignored(more: bytes) -> None:
    data = hello(more=more)
    assert wire.read(data) == contract.MESSAGE_HELLO
    assert wire.hello(data) == wire.Hello(1, "0.1.0")


@pytest.mark.parametrize("missing", [1, 16, 32])
def test_a_truncated_hello_is_malformed(missing: int) -> None:
    data = hello()[:-missing]
    with pytest.raises(wire.WireError, match="wrong length"):
        wire.read(data[:8] + struct.pack("<I", len(data)) + data[12:])


def test_a_message_type_of_a_newer_library_is_no_error() -> None:
    assert wire.read(HEADER.pack(contract.WIRE_MAGIC, 2, 99, HEADER.size, 0)) not in wire.KNOWN


RANGES = {
    "0.1.0": (1, 0, 1),
    "this release": (contract.WIRE_OLDEST, contract.WIRE_VERSION, contract.WIRE_VERSION),
    "a newer one": (contract.WIRE_OLDEST, contract.WIRE_VERSION + 5, contract.WIRE_VERSION),
    "a newer one without the oldest version": (2, 7, 3),
    "a range that ends before it begins": (2, 1, 2),
}


@pytest.mark.parametrize(("oldest", "newest", "agreed"), RANGES.values(), ids=RANGES.keys())
def test_the_newest_common_version_is_agreed_on(oldest: int, newest: int, agreed: int) -> None:
    assert wire.hello(hello(oldest=oldest, newest=newest)).version == agreed


NOT_SPOKEN = {"too new": (4, 5, "versions 4 to 5"), "too new, one": (4, 0, "version 4"), "none": (0, 0, "version 0")}


@pytest.mark.parametrize(("oldest", "newest", "named"), NOT_SPOKEN.values(), ids=NOT_SPOKEN.keys())
def test_a_range_without_a_common_version_is_refused_with_a_remedy(oldest: int, newest: int, named: str) -> None:
    with pytest.raises(wire.ProtocolVersionError) as raised:
        wire.hello(hello(oldest=oldest, newest=newest))
    assert str(raised.value) == (
        f"the library speaks {named} of the protocol and this node's agent versions 1 to 3: recreate the pod, so that "
        "it gets the agent's library"
    )
    assert raised.value.version == oldest, "which it understands"
    assert len(str(raised.value)) < struct.calcsize(contract.WIRE_REFUSED)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF))
def test_the_agreed_version_is_in_both_ranges(oldest: int, newest: int) -> None:
    try:
        agreed = wire.hello(hello(oldest=oldest, newest=newest)).version
    except wire.ProtocolVersionError:
        assert max(oldest, newest) < contract.WIRE_OLDEST or oldest > contract.WIRE_VERSION
    else:
        assert max(oldest, contract.WIRE_OLDEST) <= agreed <= min(max(oldest, newest), contract.WIRE_VERSION)


def test_later_messages_must_have_the_agreed_version() -> None:
    data = HEADER.pack(contract.WIRE_MAGIC, 1, contract.MESSAGE_RECLAIM, HEADER.size, 0)
    wire.check_version(data, 1)
    with pytest.raises(wire.ProtocolVersionError, match="version 1, after version 2 was agreed on"):
        wire.check_version(data, 2)


def test_an_answer_gets_the_agreed_version_and_is_otherwise_unchanged() -> None:
    message = wire.welcome(gpu_count=2, slot=7)
    answer = wire.with_version(message, 2)
    assert HEADER.unpack_from(answer) == (contract.WIRE_MAGIC, 2, contract.MESSAGE_WELCOME, len(message), 0)
    assert answer[HEADER.size :] == message[HEADER.size :]


@given(st.binary(max_size=600))
def test_other_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.read(data)


@pytest.mark.slow
@given(st.integers(0, len(hello()) - 1), st.integers(1, 255))
def test_a_hello_with_one_changed_byte_is_read_or_refused_but_never_fails(position: int, change: int) -> None:
    data = bytearray(hello())
    data[position] ^= change
    try:
        if wire.read(bytes(data)) == contract.MESSAGE_HELLO:
            wire.hello(bytes(data))
    except (wire.WireError, wire.ProtocolVersionError):
        assert position < HEADER.size
