"""Tests that shared memory is charged to its exporter as long as any process may hold it."""

from __future__ import annotations

import os
import socket

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, finishing
from tests.interposer.launching import line
from tests.interposer.programs import allocating, shared_memory
from tests.programs import command

LIMIT = 64 * MIB


def test_exported_memory_stays_charged_to_its_exporter(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(shared_memory.exports)
    container.program(allocating.allocates, 64 * MIB)


def test_import_is_neither_charged_nor_refunded(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(shared_memory.imports_its_own)


def test_importing_process_uses_memory_charged_to_the_exporter(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    ours, theirs = socket.socketpair()
    with finishing(container.start(command(shared_memory.sends, theirs.fileno()), keep=(theirs.fileno(),))) as process:
        theirs.close()
        assert line(process) == "sent", process.communicate(timeout=10)
        _, (memory,), _, _ = socket.recv_fds(ours, 1, 1)
        with finishing(container.start(command(shared_memory.imports, memory), keep=(memory,))) as other:
            assert other.wait(timeout=20) == 0, other.communicate(timeout=10)
        os.close(memory)
        assert arbiter.charged() == [64 * MIB]
    ours.close()
