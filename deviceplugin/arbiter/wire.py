"""Encodes and decodes the messages between library and arbiter. Pure; `gpushare.contract` defines the layouts.

Library and arbiter each speak a range of versions. The library sends its range in HELLO, in the oldest version's
format, which every compatible arbiter can read. From then on both use the newest version in both ranges.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Final

from gpushare import contract
from gpushare.allocation import Isolation

_HEADER: Final = struct.Struct(contract.WIRE_HEADER)
_HELLO: Final = struct.Struct(contract.WIRE_HELLO)
_WELCOME: Final = struct.Struct(contract.WIRE_WELCOME)
_ISOLATION: Final = struct.Struct(contract.WIRE_ISOLATION)
_REFUSED: Final = struct.Struct(contract.WIRE_REFUSED)
_RECLAIMED: Final = struct.Struct(contract.WIRE_RECLAIMED)
_LEASE: Final = struct.Struct(contract.WIRE_LEASE)

LEASE_MESSAGES: Final = frozenset({contract.MESSAGE_WANT, contract.MESSAGE_CLOSED, contract.MESSAGE_RELEASED})
# The messages that a client may send, with their minimum lengths including the header.
_SIZES: Final = {
    contract.MESSAGE_HELLO: _HEADER.size + _HELLO.size,
    contract.MESSAGE_RECLAIM: _HEADER.size,
    contract.MESSAGE_MEASURE: _HEADER.size + _LEASE.size,
    **dict.fromkeys(LEASE_MESSAGES, _HEADER.size + _LEASE.size),
}
KNOWN: Final = frozenset(_SIZES)
# The isolations that a library must know of, from version ISOLATION_VERSION on.
ISOLATION_VERSION: Final = 3
ISOLATIONS: Final = {Isolation.MPS: contract.ISOLATION_MPS, Isolation.NONE: contract.ISOLATION_NONE}


class WireError(Exception):
    """A malformed message. Its sender gets no answer."""


class ProtocolVersionError(Exception):
    """An unsupported protocol version. The message is for the client, which speaks `version`."""

    def __init__(self, sentence: str, version: int) -> None:
        super().__init__(sentence)
        self.version = version


@dataclasses.dataclass(frozen=True, slots=True)
class Hello:
    """A client's first message: the newest common `version`, and the library's own version, for logs."""

    version: int
    library: str


def read(data: bytes) -> int:
    """Return the type of a client's message, which need not be in KNOWN. Raises WireError."""
    if len(data) < _HEADER.size:
        raise WireError(f"a message of {len(data)} bytes is too short")
    magic, _, kind, size, _ = _HEADER.unpack_from(data)
    if magic != contract.WIRE_MAGIC:
        raise WireError("a message with a wrong magic number")
    if size != len(data) or size > contract.WIRE_MAX or size < _SIZES.get(kind, 0):
        raise WireError(f"a message of type {kind} with a wrong length, {len(data)} bytes")
    return int(kind)


def hello(data: bytes) -> Hello:
    """Decode a HELLO. Raises ProtocolVersionError."""
    _, oldest, _, _, newest = _HEADER.unpack_from(data)
    newest = max(oldest, newest)
    version = min(newest, contract.WIRE_VERSION)
    if version < max(oldest, contract.WIRE_OLDEST):
        spoken = f"version {oldest}" if newest == oldest else f"versions {oldest} to {newest}"
        raise ProtocolVersionError(
            f"the library speaks {spoken} of the protocol and this node's agent versions {contract.WIRE_OLDEST} to "
            f"{contract.WIRE_VERSION}: recreate the pod, so that it gets the agent's library",
            oldest,
        )
    (text,) = _HELLO.unpack_from(data, _HEADER.size)
    return Hello(version, text.split(b"\0", 1)[0].decode("ascii", "replace"))


def check_version(data: bytes, version: int) -> None:
    """Raise ProtocolVersionError unless the message has the negotiated version."""
    _, spoken, _, _, _ = _HEADER.unpack_from(data)
    if spoken != version:
        sentence = f"the library sent a message in version {spoken}, after version {version} was agreed on"
        raise ProtocolVersionError(sentence, version)


def with_version(message: bytes, version: int) -> bytes:
    magic, _, kind, size, newest = _HEADER.unpack_from(message)
    return _HEADER.pack(magic, version, kind, size, newest) + message[_HEADER.size :]


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """The content of a message about a lease. `gpu` is the GPU's position in the limits page."""

    gpu: int
    flags: int
    number: int


def lease(data: bytes) -> Lease:
    return Lease(*_LEASE.unpack_from(data, _HEADER.size))


def refused_charge(data: bytes) -> Lease | None:
    """Decode the refused charge in a RECLAIM: GPU, 0 and bytes; None if it names none."""
    return lease(data) if len(data) >= _HEADER.size + _LEASE.size else None


def opened(said: Lease) -> bytes:
    return _message(contract.MESSAGE_OPEN, _LEASE.pack(said.gpu, said.flags, said.number))


def revoked(said: Lease) -> bytes:
    return _message(contract.MESSAGE_REVOKE, _LEASE.pack(said.gpu, said.flags, said.number))


def welcome(*, gpu_count: int, slot: int, isolation: Isolation = Isolation.ARBITER, percent: int = 0) -> bytes:
    """Encode WELCOME, which carries two descriptors: limits and ledger. percent: an MPS client's multiprocessors."""
    body = _WELCOME.pack(gpu_count, slot)
    if isolation in ISOLATIONS:
        client = (percent, contract.CONTAINER_MPS_PIPE.encode()) if isolation is Isolation.MPS else (0, b"")
        body += _ISOLATION.pack(ISOLATIONS[isolation], *client)
    return _message(contract.MESSAGE_WELCOME, body)


def refused(sentence: str) -> bytes:
    """Encode REFUSED with one sentence, truncated to fit and NUL-terminated."""
    encoded = sentence.encode()[: _REFUSED.size - 1]
    return _message(contract.MESSAGE_REFUSED, _REFUSED.pack(encoded.decode(errors="ignore").encode()))


def reclaimed(freed_bytes: int) -> bytes:
    return _message(contract.MESSAGE_RECLAIMED, _RECLAIMED.pack(min(freed_bytes, 2**64 - 1)))


def measured(asked: Lease, unclaimed_bytes: int | None) -> bytes:
    """Encode MEASURED, the answer to MEASURE; None means unknown."""
    most = 2**64 - 1
    left = most if unclaimed_bytes is None else min(unclaimed_bytes, most)
    return _message(contract.MESSAGE_MEASURED, _LEASE.pack(asked.gpu, asked.flags, left))


def _message(kind: int, body: bytes) -> bytes:
    size = _HEADER.size + len(body)
    return _HEADER.pack(contract.WIRE_MAGIC, contract.WIRE_OLDEST, kind, size, 0) + body
