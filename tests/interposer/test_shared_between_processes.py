"""Tests that only the exporter is charged for memory shared between processes, in any order of their ends."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, finishing
from tests.interposer.gpu import Gpu
from tests.interposer.launching import line
from tests.interposer.programs.shared_between_processes import LIMIT, SHARED, WAYS, has, makes, storm
from tests.programs import command

pytestmark = pytest.mark.slow


@contextmanager
def pair(
    container: Container, way: str, *, ends: bool = False, takes_bytes: int = 0
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Run a process that shares memory and one that receives it, then releases it or allocates more; each waits for a
    line.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    importer = command(has, way, theirs.fileno(), ends=ends, takes_bytes=takes_bytes)
    with (
        finishing(container.start(command(makes, way, ours.fileno()), keep=(ours.fileno(),))) as maker,
        finishing(container.start(importer, keep=(theirs.fileno(),))) as other,
    ):
        ours.close()
        theirs.close()
        assert line(maker) == "shared", maker.communicate(timeout=10)
        assert line(other) == "has it", other.communicate(timeout=10)
        yield maker, other


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)


@pytest.mark.parametrize("way", WAYS)
def test_shared_memory_is_charged_once(container: Container, make_arbiter: ArbiterMaker, way: str) -> None:
    arbiter = make_arbiter(LIMIT)
    with pair(container, way, ends=True) as (_, importer):
        assert arbiter.charged() == [SHARED]
        importer.communicate("\n", timeout=10)
        assert importer.returncode == 0
        assert container.filled_bytes() == LIMIT - SHARED
    assert container.filled_bytes() == LIMIT


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dies", ["the exporter", "the importer"])
def test_killed_process_refunds_only_its_own_charges(
    container: Container, make_arbiter: ArbiterMaker, way: str, dies: str
) -> None:
    arbiter = make_arbiter(LIMIT)
    with pair(container, way, takes_bytes=10 * MIB) as (maker, importer):
        assert sorted(arbiter.charged()) == [10 * MIB, SHARED]
        _kill(maker if dies == "the exporter" else importer)
        assert container.filled_bytes() == LIMIT - (10 * MIB if dies == "the exporter" else SHARED)
    assert container.filled_bytes() == LIMIT


def test_processes_that_share_and_die_never_exceed_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    gpu, dice = Gpu(container), random.Random(11)
    try:
        for way in list(WAYS) * 3:
            with pair(container, way) as both, finishing(container.start(command(storm))) as beside:
                assert line(beside) == "started"
                for process in dice.sample(both, 2):
                    assert gpu.most_used() <= LIMIT
                    _kill(process)
                assert gpu.most_used() <= LIMIT
                assert beside.poll() is None
            assert container.filled_bytes() == LIMIT
    finally:
        gpu.close()
