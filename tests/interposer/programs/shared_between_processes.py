"""Programs that share memory between processes in every way."""

from __future__ import annotations

import ctypes
import random
import socket

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda, on_device

LIMIT, SHARED = 64 * MIB, 32 * MIB  # the smallest size of a pool
SEED = 0x5EED


class Way(Cuda):
    """A way to share memory: create it, write it and send it through a socket; receive it and release it."""

    pointer = 0

    def used(self) -> int:
        return LIMIT - self.info()[0]

    def write(self) -> None:
        self.check("cuMemcpyHtoD_v2", self.pointer, ctypes.byref(ctypes.c_uint64(SEED)), 8)

    def make(self, there: socket.socket) -> None:
        raise NotImplementedError

    def get(self, there: socket.socket) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class Pool(Way):
    """Sharing by a pool and a pointer into it."""

    def make(self, there: socket.socket) -> None:
        pool, token = self.made("cuMemPoolCreate", ctypes.byref(on_device(0, 1))), (ctypes.c_ubyte * 64)()
        result, self.pointer = self.allocate(20 * MIB, "cuMemAllocFromPoolAsync", pool, 0)
        assert result == SUCCESS
        self.write()
        descriptor = ctypes.c_int(-1)
        self.check("cuMemPoolExportToShareableHandle", ctypes.byref(descriptor), pool, 1, 0)
        self.check("cuMemPoolExportPointer", token, self.pointer)
        socket.send_fds(there, [bytes(token)], [descriptor.value])

    def get(self, there: socket.socket) -> None:
        token, (descriptor,), _, _ = socket.recv_fds(there, 64, 1)
        pool, pointer = self.made("cuMemPoolImportFromShareableHandle", descriptor, 1, 0), ctypes.c_uint64()
        self.check("cuMemPoolImportPointer", ctypes.byref(pointer), pool, token)
        not_ours, _ = self.allocate(MIB, "cuMemAllocFromPoolAsync", pool, 0)
        assert not_ours not in (SUCCESS, OUT_OF_MEMORY)
        self.pointer = pointer.value

    def end(self) -> None:
        self.check("cuMemFreeAsync", self.pointer, 0)


class Handles(Way):
    """Sharing by a handle, which each process maps."""

    def _map(self, handle: ctypes.c_uint64) -> None:
        self.handle, address = handle, ctypes.c_uint64()
        self.check("cuMemAddressReserve", ctypes.byref(address), SHARED, 0, 0, 0)
        self.pointer = address.value
        self.check("cuMemMap", self.pointer, SHARED, 0, handle.value, 0)
        self.check("cuMemSetAccess", self.pointer, SHARED, (ctypes.c_int * 3)(1, 0, 3), 1)

    def make(self, there: socket.socket) -> None:
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int(-1)
        self.check("cuMemCreate", ctypes.byref(handle), SHARED, ctypes.byref(on_device(0, 1)), 0)
        self._map(handle)
        self.write()
        self.check("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle.value, 1, 0)
        socket.send_fds(there, [b"x"], [descriptor.value])

    def get(self, there: socket.socket) -> None:
        _, (descriptor,), _, _ = socket.recv_fds(there, 1, 1)
        handle = ctypes.c_uint64()
        self.check("cuMemImportFromShareableHandle", ctypes.byref(handle), descriptor, 1)
        self._map(handle)

    def end(self) -> None:
        self.check("cuMemUnmap", self.pointer, SHARED)
        self.check("cuMemRelease", self.handle.value)


class Token(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class LegacyIpc(Way):
    """Sharing by an allocation's IPC handle."""

    def make(self, there: socket.socket) -> None:
        result, self.pointer = self.allocate(SHARED)
        assert result == SUCCESS
        self.write()
        token = (ctypes.c_ubyte * 64)()
        self.check("cuIpcGetMemHandle", token, self.pointer)
        there.send(bytes(token))

    def get(self, there: socket.socket) -> None:
        token, opened = there.recv(64), []
        for _ in range(2):
            pointer = ctypes.c_uint64()
            self.check("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), Token.from_buffer_copy(token), 1)
            opened.append(pointer.value)
        assert opened[0] == opened[1]
        self.pointer = opened[0]
        self.check("cuIpcCloseMemHandle", self.pointer)

    def end(self) -> None:
        assert self.free(self.pointer) != SUCCESS, "the memory was not allocated by this process"
        self.check("cuIpcCloseMemHandle", self.pointer)


WAYS: dict[str, type[Way]] = {"a pool": Pool, "handles": Handles, "legacy IPC": LegacyIpc}


def say(word: str) -> None:
    print(word, flush=True)


def makes(way: str, channel: int) -> None:
    c = WAYS[way]()
    c.make(socket.socket(fileno=channel))
    say("shared")
    input()


def has(way: str, channel: int, *, ends: bool = False, takes_bytes: int = 0) -> None:
    """Receive the other process's memory, then release it or allocate more."""
    c, content = WAYS[way](), ctypes.c_uint64()
    c.get(socket.socket(fileno=channel))
    c.check("cuMemcpyDtoH_v2", ctypes.byref(content), c.pointer, 8)
    assert content.value == SEED
    if ends:
        assert c.used() == SHARED
        c.end()
        assert c.used() == SHARED
        assert c.allocate(SHARED + 1)[0] == OUT_OF_MEMORY
    assert not takes_bytes or c.allocate(takes_bytes)[0] == SUCCESS
    say("has it")
    input()


def storm() -> None:
    c = Cuda()
    say("started")
    while True:
        result, taken = c.allocate(random.randrange(1, 20 * MIB))
        if result == SUCCESS:
            c.free(taken)
