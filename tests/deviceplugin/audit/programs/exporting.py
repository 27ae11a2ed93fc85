"""A program that exports memory, releases it, and imports that of other programs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import time

from tests.deviceplugin.audit.programs.asked import answer
from tests.interposer.cuda_client import MIB, SUCCESS, Cuda, on_device

PIECE = 64 * MIB


class Exporter(Cuda):
    """A client that keeps handles by name, and opened descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, int] = {}
        self.opened: list[int] = []

    def create(self, size: int = PIECE) -> tuple[int, int]:
        handle = ctypes.c_uint64()
        result = self.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(on_device(0, 1)), 0)
        return result, handle.value

    def export(self, handle: int) -> int:
        descriptor = ctypes.c_int(-1)
        self.check("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, 0)
        return descriptor.value

    def import_(self, descriptor: int) -> int:
        handle = ctypes.c_uint64()
        self.check("cuMemImportFromShareableHandle", ctypes.byref(handle), descriptor, 1)
        os.close(descriptor)
        return handle.value

    def make(self) -> int:
        result, handle = self.create()
        assert result == SUCCESS, result
        self.held["handle"] = handle
        return self.export(handle)

    def let_go(self) -> None:
        self.check("cuMemRelease", self.held.pop("handle"))

    def round(self) -> int:
        result, handle = self.create()
        if result == SUCCESS:
            os.close(self.export(handle))
            self.check("cuMemRelease", handle)
        return result

    def rounds(self, count: int) -> int:
        return sum(self.round() != SUCCESS for _ in range(count))

    def send(self, end: int, descriptor: int) -> None:
        socket.send_fds(socket.socket(fileno=os.dup(end)), [b"x"], [descriptor])
        os.close(descriptor)

    def receive(self, end: int) -> None:
        (descriptor,) = socket.recv_fds(socket.socket(fileno=os.dup(end)), 1, 1)[1]
        self.held["handle"] = self.import_(descriptor)

    def room(self) -> int:
        """Return how many pieces can be allocated."""
        taken = []
        while (allocation := self.allocate(PIECE))[0] == SUCCESS:
            taken.append(allocation[1])
        for pointer in taken:
            self.free(pointer)
        return len(taken)

    def storm(self, seed: int, ends: tuple[int, int]) -> int:
        """Create, export, send, import and release memory at random; return the number of operations."""
        dice, until, done = random.Random(seed), time.monotonic() + 3, 0
        ours: list[int] = []
        channels = [socket.socket(fileno=os.dup(end)) for end in ends]
        for channel in channels:
            channel.setblocking(False)
        while time.monotonic() < until:
            match dice.randrange(6):
                case 0:
                    result, handle = self.create(dice.randrange(1, 40) * 2 * MIB)
                    if result == SUCCESS:
                        ours.append(handle)
                case 1 if ours:
                    descriptor = ctypes.c_int(-1)
                    self.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), dice.choice(ours), 1, 0)
                    if descriptor.value >= 0:
                        with contextlib.suppress(BlockingIOError):
                            socket.send_fds(channels[0], [b"x"], [descriptor.value])
                        os.close(descriptor.value)
                case 2:
                    try:
                        (got,) = socket.recv_fds(channels[1], 1, 1)[1]
                    except BlockingIOError:
                        continue
                    ours.append(self.import_(got))
                case 3 | 4 if ours:
                    self.check("cuMemRelease", ours.pop(dice.randrange(len(ours))))
                case 5:
                    symbol = dice.choice(["cuMemAlloc_v2", "cuMemAllocAsync"])
                    result, pointer = self.allocate(dice.randrange(1, 100) * MIB, symbol, 0)
                    if result == SUCCESS:
                        self.free(pointer)
            done += 1
        return done


def answers() -> None:
    answer(Exporter(), PIECE=PIECE)
