"""Hears at once of a kubelet that comes: it makes its socket again in a directory that is watched (inotify(7)).

A kubelet that has started judges its pods within a second, also those that it had before and of which no container
runs, and those that ask for what no plugin has registered yet are refused for good. To look once a second is too late
for them. It is done all the same: a watch is lost with its directory, and a machine has only so many of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_NEW_FILES: Final = 0x100 | 0x80  # IN_CREATE | IN_MOVED_TO
_EVENT: Final = struct.Struct("=iIII")  # struct inotify_event, before its name
_MAX_BYTES: Final = 1 << 16

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Coming:
    """To be used in a running event loop, and closed."""

    def __init__(self, socket: Path) -> None:
        self._directory, self._name = os.fsencode(socket.parent), os.fsencode(socket.name)
        self._waiting: weakref.WeakSet[asyncio.Event] = weakref.WeakSet()
        self._descriptor: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            why = os.strerror(ctypes.get_errno())
            logger.warning("The kubelet's directory cannot be watched, and is looked at instead", extra={"err": why})
        else:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def pause(self) -> Callable[[float], Awaitable[None]]:
        """For one who waits: a pause of so many seconds that ends when it comes, or has since the pause before."""
        come = asyncio.Event()
        self._waiting.add(come)
        self._watch()

        async def wait(seconds: float) -> None:
            self._watch()
            try:
                async with asyncio.timeout(seconds):
                    await come.wait()
            except TimeoutError:
                return
            come.clear()

        return wait

    def close(self) -> None:
        """Listen no more; who waits now waits until the time is up."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _watch(self) -> None:
        """The directory may be another one by now; to watch the same one again changes nothing."""
        if self._descriptor >= 0:
            _libc.inotify_add_watch(self._descriptor, self._directory, _NEW_FILES)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _MAX_BYTES)
        except BlockingIOError:
            return
        at, names = 0, set[bytes]()
        while at < len(data):
            *_, length = _EVENT.unpack_from(data, at)
            names.add(data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
            at += _EVENT.size + length
        if self._name in names:
            for come in self._waiting:
                come.set()
