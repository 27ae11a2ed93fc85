"""The channel between agent and arbiter: messages in order, some with file descriptors.

Neither end blocks: what does not fit into the socket buffer is queued. Incoming data is read in small portions, so that
a long list does not delay a lease.
"""

from __future__ import annotations

import array
import asyncio
import collections
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

from deviceplugin.arbiter import messages
from deviceplugin.arbiter.messages import Message

PORTION_BYTES: Final = 8192
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(8 * array.array("i").itemsize)  # a message has two at most
_HEADER: Final = struct.Struct("=IB")  # length of the message, and its number of descriptors

Heard = Callable[[Message, Sequence[int]], None]


class Channel:
    """One end of the channel, inside a running event loop. It owns `end`."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._unsent: collections.deque[tuple[bytes, list[int]]] = collections.deque()
        self._unread = bytearray()
        self._descriptors: list[int] = []
        self._open = True

    def listen(self, heard: Heard, ended: Callable[[], None]) -> None:
        """Call `heard` with each message and its descriptors, which `heard` closes, and `ended` when the other end
        closes.
        """
        self._heard, self._ended = heard, ended
        self._loop.add_reader(self._end, self._readable)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message, or queue it. Drop it if the other end is gone. The caller keeps the descriptors."""
        if not self._open:
            return
        body = messages.write(message)
        # Duplicate them: the caller may close its descriptors before they are sent.
        copies = [os.dup(descriptor) for descriptor in descriptors]
        self._unsent.append((_HEADER.pack(len(body), len(copies)) + body, copies))
        if len(self._unsent) == 1:
            self._write()

    def close(self) -> None:
        """Close this end, and drop queued messages."""
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
        while self._open and (message := self._next()) is not None:
            body, own = message
            self._heard(messages.read(body), own)

    def _next(self) -> tuple[bytes, list[int]] | None:
        """Return the next complete message and its descriptors, which arrive with its first byte."""
        if len(self._unread) < _HEADER.size:
            return None
        size, count = _HEADER.unpack_from(self._unread)
        end = _HEADER.size + size
        if len(self._unread) < end:
            return None
        body = bytes(self._unread[_HEADER.size : end])
        del self._unread[:end]
        own, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return body, own


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
