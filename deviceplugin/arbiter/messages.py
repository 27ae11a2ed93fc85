"""The messages between agent and arbiter, and the channel that carries them in order, some with file descriptors.

The agent knows the cluster and the driver; the arbiter knows the processes and their ledgers. Both are always of the
same release, so the messages need no version. Answers come in the order of the questions.

To the arbiter: HasAllocation, AllocationGone, ApplyAllocations, Identified, UnclaimedMemory, Report, ContextCharges,
ShareOverheads, Measured, ShareActivities. To the agent: ArbiterReady, Changed, ResizesApplied, Identify, Measure,
RunningShareState, ShareGone, LeaseReports, Reported, LibraryRefused.
"""

from __future__ import annotations

import array
import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.host import records
from deviceplugin.host.kernel_process import Container
from gpushare.allocation import Allocation
from gpushare.gpunode import Resize

PORTION_BYTES: Final = 8192  # read at once, so that a long list does not delay a lease
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(8 * array.array("i").itemsize)  # a message has two at most
_HEADER: Final = struct.Struct("=IB")  # length of the message, and its number of descriptors

KINDS: Final[dict[str, type[Message]]] = {}  # by name


class Message:
    """A message between agent and arbiter. In JSON it is a pair of its kind's name and its fields."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls  # a dataclass with slots is created twice, and the second class is the one in use


@dataclasses.dataclass(frozen=True, slots=True)
class HasAllocation(Message):
    """An allocation that is new in the GPUNode, or has changed."""

    allocation: Allocation


@dataclasses.dataclass(frozen=True, slots=True)
class AllocationGone(Message):
    """The id of an allocation that is gone from the GPUNode."""

    allocation: str


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyAllocations(Message):
    """A request to apply the allocations sent so far; `resizes` are those in the GPUNode's status."""

    resizes: tuple[Resize, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ResizesApplied(Message):
    """The answer to ApplyAllocations: the resizes that the GPUNode's status should have."""

    resizes: tuple[Resize, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Changed(Message):
    """A notice that the resizes in the GPUNode's status may be outdated."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArbiterReady(Message):
    """A notice that the arbiter has recovered the ledgers and accepts connections."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identify(Message):
    """A request for the share of a container."""

    container: Container


@dataclasses.dataclass(frozen=True, slots=True)
class Identified(Message):
    """The answer to Identify: the share and its GPUs' total bytes, or the reason for the container's processes."""

    container: Container
    tenant: Tenant | None
    refusal: str = ""
    gpus: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ContextCharges(Message):
    """How many bytes to charge on these GPUs for a CUDA context before it is created, from now on."""

    contexts: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Overhead:
    """Bytes that a process holds beyond its charges, by GPU in the order of the grants."""

    pid: int
    start_ticks: int
    held_bytes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareOverheads(Message):
    """The overheads of all processes of a share, by the share's key."""

    share: str
    processes: tuple[Overhead, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured(Message):
    """A notice that overheads are known from now on, so that shares may shrink."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShareActivities(Message):
    """By GPU and share's key: whether the driver has recently run its work. Only of shares that the agent sampled."""

    activities: tuple[tuple[str, str, bool], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryRefused(Message):
    """A notice that a process of this container was refused because of its library's protocol version."""

    container: Container
    sentence: str


@dataclasses.dataclass(frozen=True, slots=True)
class Measure(Message):
    """A request for how much of a GPU's memory belongs to no other process; `gpu` is its place in the share."""

    number: int
    share: str
    pid: int
    start_ticks: int
    gpu: int


@dataclasses.dataclass(frozen=True, slots=True)
class UnclaimedMemory(Message):
    """The answer to the Measure with this number; None if unknown."""

    number: int
    memory_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Report(Message):
    """A request for all changes since the last report. `turns`: include the shares' use of their GPUs."""

    turns: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerMember:
    """A process with a slot in a ledger."""

    slot: int
    pid: int
    start_ticks: int


@dataclasses.dataclass(frozen=True, slots=True)
class RunningShareState(Message):
    """A share with processes. A new share comes with the descriptors of its limits and ledger."""

    tenant: Tenant
    members: tuple[LedgerMember, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareGone(Message):
    """The key of a share whose last process has ended."""

    share: str


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseReport:
    """How a share has used a GPU: `leases.LeaseUsage`, with the share's key in place of the share."""

    share: str
    gpu_uuid: str
    seconds: float
    leases: int
    recent: float | None
    waited_seconds: float
    throttled_seconds: float
    evictions: int
    had_seconds: float


USAGE_FIELDS: Final = tuple(field.name for field in dataclasses.fields(LeaseReport) if field.name != "share")


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseReports(Message):
    """Some of a report's lease reports; long lists are sent in parts."""

    turns: tuple[LeaseReport, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Reported(Message):
    """The end of a report. `versions`: connections by protocol version. `unreachable`: pid and start of processes."""

    connections: int
    turned_away: int
    versions: tuple[tuple[int, int], ...]
    lost_ticks: int
    unreachable: tuple[tuple[int, int], ...]  # the arbiter cannot open their ledgers


def write(message: Message) -> bytes:
    return json.dumps([type(message).__name__, records.to_json(message)], separators=(",", ":")).encode()


def read(data: bytes) -> Message:
    """Decode a message. Raises ValueError."""
    said = records.loads(data)
    records.check(isinstance(said, list) and len(said) == 2, "a message must be a pair of name and content")
    name, document = said
    records.check(isinstance(name, str) and name in KINDS, f"unknown message {name!r}")
    return records.read(KINDS[name], document)


class Channel:
    """One end of the channel, inside a running event loop. It owns `end`.

    Neither end blocks: what does not fit into the socket buffer is queued.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._unsent: collections.deque[tuple[bytes, list[int]]] = collections.deque()
        self._unread = bytearray()
        self._descriptors: list[int] = []
        self._open = True

    def listen(self, heard: Callable[[Message, Sequence[int]], None], ended: Callable[[], None]) -> None:
        """Call `heard` with messages and their descriptors, which it closes, and `ended` when the other end closes."""
        self._heard, self._ended = heard, ended
        self._loop.add_reader(self._end, self._readable)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message, or queue it. Drop it if the other end is gone. The caller keeps the descriptors."""
        if not self._open:
            return
        body = write(message)
        # Duplicate them: the caller may close its descriptors before they are sent.
        copies = [os.dup(descriptor) for descriptor in descriptors]
        self._unsent.append((_HEADER.pack(len(body), len(copies)) + body, copies))
        if len(self._unsent) == 1:
            self._write()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        for _, copies in self._unsent:
            _close(copies)
        _close(self._descriptors)
        self._unsent.clear()

    def _write(self) -> None:
        while self._unsent:
            data, copies = self._unsent[0]
            try:
                sent = socket.send_fds(self._end, [data], copies, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._end, self._write)
                return
            except OSError:  # the other end is gone; the listener notices
                sent = len(data)
            _close(copies)
            self._unsent[0] = data[sent:], []
            if sent == len(data):
                self._unsent.popleft()
        self._loop.remove_writer(self._end)

    def _readable(self) -> None:
        try:
            # `socket.recv_fds` does not pass flags on, so child processes would inherit the descriptors.
            data, ancillary, _, _ = self._end.recvmsg(PORTION_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._loop.remove_reader(self._end)
            self._ended()
            return
        self._unread += data
        for _, _, packed in ancillary:
            self._descriptors += array.array("i", packed)
        while self._open and len(self._unread) >= _HEADER.size:
            size, count = _HEADER.unpack_from(self._unread)
            end = _HEADER.size + size
            if len(self._unread) < end:
                return
            body = bytes(self._unread[_HEADER.size : end])
            del self._unread[:end]
            # Descriptors arrive with the first byte of their message.
            own, self._descriptors = self._descriptors[:count], self._descriptors[count:]
            self._heard(read(body), own)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
