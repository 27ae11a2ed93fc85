"""Memory shared between processes is charged to the one that made it, for as long as anyone might hold it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import CLIENT_PRELUDE, Container, finishing

LIMIT = 64 * MIB
PRELUDE = f"""
c = Cuda()
used = lambda: {LIMIT // MIB} - c.info()[0] // MIB
handle, other, address = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
create = lambda mib: c.call("cuMemCreate", ctypes.byref(handle), mib * MIB, ctypes.byref(on_device(0, 1)), 0)
def export():
    descriptor = ctypes.c_int(-1)
    c.check("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle.value, 1, 0)
    return descriptor.value
importing = lambda descriptor: c.call("cuMemImportFromShareableHandle", ctypes.byref(other), descriptor, 1)
"""


def test_what_was_exported_stays_charged_to_its_maker(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
assert create(20) == SUCCESS
c.check("cuMemRelease", handle.value)
assert used() == 0, "as long as it was not exported"
assert create(20) == SUCCESS
export()
c.check("cuMemRelease", handle.value)
assert used() == 20, "another may have it"
"""
    )
    container.python("c = Cuda()\nassert c.allocate(64 * MIB)[0] == SUCCESS")


def test_an_import_is_not_charged_and_its_end_refunds_nothing(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
assert create(40) == SUCCESS
assert c.allocate(20 * MIB)[0] == SUCCESS
assert importing(export()) == SUCCESS
assert used() == 60
c.check("cuMemAddressReserve", ctypes.byref(address), 40 * MIB, 0, 0, 0)
c.check("cuMemMap", address.value, 40 * MIB, 0, other.value, 0)
c.check("cuMemRelease", other.value)
c.check("cuMemUnmap", address.value, 40 * MIB)
assert used() == 60
c.check("cuMemMap", address.value, 40 * MIB, 0, handle.value, 0)
c.check("cuMemUnmap", address.value, 40 * MIB)
assert used() == 60
"""
    )


def test_a_process_that_imports_has_what_another_is_charged_for(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    ours, theirs = socket.socketpair()
    exporter = f"""
import socket
assert create(64) == SUCCESS
socket.send_fds(socket.socket(fileno={theirs.fileno()}), [b"x"], [export()])
print("sent", flush=True)
input()
"""
    with finishing(_start_with(container, exporter, theirs.fileno())) as process:
        theirs.close()
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n", process.communicate(timeout=10)
        _, (memory,), _, _ = socket.recv_fds(ours, 1, 1)
        importer = f"""
assert importing({memory}) == SUCCESS
c.check("cuMemAddressReserve", ctypes.byref(address), 64 * MIB, 0, 0, 0)
c.check("cuMemMap", address.value, 64 * MIB, 0, other.value, 0)
assert used() == 64
assert c.allocate(1)[0] == OUT_OF_MEMORY
"""
        with finishing(_start_with(container, importer, memory)) as other:
            assert other.wait(timeout=20) == 0, other.communicate(timeout=10)
        os.close(memory)
        assert arbiter.charged() == [64 * MIB]
    ours.close()


def _start_with(container: Container, code: str, descriptor: int) -> subprocess.Popen[str]:
    return container.start([sys.executable, "-c", CLIENT_PRELUDE + PRELUDE + code], keep=(descriptor,))
