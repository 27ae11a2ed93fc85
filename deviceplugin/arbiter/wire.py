"""Messages between library and arbiter, to and from bytes. Pure; the layouts are the contract's."""

from __future__ import annotations

import dataclasses
import struct
from typing import Final

from gpushare import contract

_HEADER: Final = struct.Struct(contract.WIRE_HEADER)
_HELLO: Final = struct.Struct(contract.WIRE_HELLO)
_WELCOME: Final = struct.Struct(contract.WIRE_WELCOME)
_REFUSED: Final = struct.Struct(contract.WIRE_REFUSED)
_RECLAIMED: Final = struct.Struct(contract.WIRE_RECLAIMED)
_LEASE: Final = struct.Struct(contract.WIRE_LEASE)

# What a client may send, and how long each is with its header.
_SIZES: Final = {
    contract.MESSAGE_HELLO: _HEADER.size + _HELLO.size,
    contract.MESSAGE_RECLAIM: _HEADER.size,
    contract.MESSAGE_WANT: _HEADER.size + _LEASE.size,
    contract.MESSAGE_CLOSED: _HEADER.size + _LEASE.size,
    contract.MESSAGE_RELEASED: _HEADER.size + _LEASE.size,
}


class WireError(Exception):
    """Not a message of ours; nothing is said to whoever sent it."""


class VersionError(Exception):
    """A message of another version of the protocol; the sentence is for the other side."""


def read(data: bytes) -> int:
    """The type of a client's message. Raises WireError and VersionError."""
    if len(data) < _HEADER.size:
        raise WireError(f"{len(data)} bytes are no message")
    magic, version, kind, size, _ = _HEADER.unpack_from(data)
    if magic != contract.WIRE_MAGIC:
        raise WireError("it does not begin as a message does")
    if version != contract.WIRE_VERSION:
        raise VersionError(
            f"the library speaks version {version} of the protocol and this node's agent version "
            f"{contract.WIRE_VERSION}: recreate the pod, so that it gets the agent's library"
        )
    if kind not in _SIZES:
        raise WireError(f"a client sends no message of type {kind}")
    if size != len(data) or size != _SIZES[kind]:
        raise WireError(f"a message of type {kind} has not {len(data)} bytes")
    return int(kind)


def library_version(hello: bytes) -> str:
    """What the library says it is; for logs only."""
    (text,) = _HELLO.unpack_from(hello, _HEADER.size)
    return str(text.split(b"\0", 1)[0].decode("ascii", "replace"))


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """What a message about a lease says; `card`: the place of the GPU in the limits page."""

    card: int
    flags: int
    number: int


def lease(data: bytes) -> Lease:
    """What a client says of a lease."""
    return Lease(*_LEASE.unpack_from(data, _HEADER.size))


def opened(said: Lease) -> bytes:
    """Launch; with these flags."""
    return _message(contract.MESSAGE_OPEN, _LEASE.pack(said.card, said.flags, said.number))


def revoked(said: Lease) -> bytes:
    """Launch nothing more."""
    return _message(contract.MESSAGE_REVOKE, _LEASE.pack(said.card, said.flags, said.number))


def welcome(*, gpu_count: int, slot: int) -> bytes:
    """Goes with two descriptors: limits, ledger."""
    return _message(contract.MESSAGE_WELCOME, _WELCOME.pack(gpu_count, slot))


def refused(sentence: str) -> bytes:
    """One sentence, cut to what fits, always ended by a NUL."""
    encoded = sentence.encode()[: _REFUSED.size - 1]
    return _message(contract.MESSAGE_REFUSED, _REFUSED.pack(encoded.decode(errors="ignore").encode()))


def reclaimed(freed_bytes: int) -> bytes:
    """How much became free."""
    return _message(contract.MESSAGE_RECLAIMED, _RECLAIMED.pack(min(freed_bytes, 2**64 - 1)))


def _message(kind: int, body: bytes) -> bytes:
    size = _HEADER.size + len(body)
    return _HEADER.pack(contract.WIRE_MAGIC, contract.WIRE_VERSION, kind, size, 0) + body
