"""Programs that export and import memory by handle."""

from __future__ import annotations

import ctypes
import socket

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda, on_device

LIMIT = 64 * MIB


class Handles(Cuda):
    """A client with one handle that it created, an imported one, and addresses to map them at."""

    def __init__(self) -> None:
        super().__init__()
        self.handle, self.other, self.at = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()

    def used(self) -> int:
        return (LIMIT - self.info()[0]) // MIB

    def create(self, mib: int) -> int:
        return self.call("cuMemCreate", ctypes.byref(self.handle), mib * MIB, ctypes.byref(on_device(0, 1)), 0)

    def export(self) -> int:
        descriptor = ctypes.c_int(-1)
        self.check("cuMemExportToShareableHandle", ctypes.byref(descriptor), self.handle.value, 1, 0)
        return descriptor.value

    def importing(self, descriptor: int) -> int:
        return self.call("cuMemImportFromShareableHandle", ctypes.byref(self.other), descriptor, 1)


def exports() -> None:
    c = Handles()
    assert c.create(20) == SUCCESS
    c.check("cuMemRelease", c.handle.value)
    assert c.used() == 0, "before it is exported"
    assert c.create(20) == SUCCESS
    c.export()
    c.check("cuMemRelease", c.handle.value)
    assert c.used() == 20, "another process may hold it"


def imports_its_own() -> None:
    c = Handles()
    assert c.create(40) == SUCCESS
    assert c.allocate(20 * MIB)[0] == SUCCESS
    assert c.importing(c.export()) == SUCCESS
    assert c.used() == 60
    c.check("cuMemAddressReserve", ctypes.byref(c.at), 40 * MIB, 0, 0, 0)
    c.check("cuMemMap", c.at.value, 40 * MIB, 0, c.other.value, 0)
    c.check("cuMemRelease", c.other.value)
    c.check("cuMemUnmap", c.at.value, 40 * MIB)
    assert c.used() == 60
    c.check("cuMemMap", c.at.value, 40 * MIB, 0, c.handle.value, 0)
    c.check("cuMemUnmap", c.at.value, 40 * MIB)
    assert c.used() == 60


def sends(descriptor: int) -> None:
    c = Handles()
    assert c.create(64) == SUCCESS
    socket.send_fds(socket.socket(fileno=descriptor), [b"x"], [c.export()])
    print("sent", flush=True)
    input()


def imports(descriptor: int) -> None:
    c = Handles()
    assert c.importing(descriptor) == SUCCESS
    c.check("cuMemAddressReserve", ctypes.byref(c.at), 64 * MIB, 0, 0, 0)
    c.check("cuMemMap", c.at.value, 64 * MIB, 0, c.other.value, 0)
    assert c.used() == 64
    assert c.allocate(1)[0] == OUT_OF_MEMORY
