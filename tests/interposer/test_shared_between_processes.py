"""Tests that only the exporter is charged for memory shared between processes, whichever process dies first."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import PROBE, Container, finishing
from tests.interposer.gpu import Gpu
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
        assert maker.stdout is not None
        assert other.stdout is not None
        assert maker.stdout.readline() == "shared\n", maker.communicate(timeout=10)
        assert other.stdout.readline() == "has it\n", other.communicate(timeout=10)
        yield maker, other


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def _rest_is(container: Container, left_bytes: int) -> None:
    assert container.run([PROBE, "--fill"]).stdout.splitlines()[-1] == f"filled {left_bytes}"


@pytest.mark.parametrize("way", WAYS)
def test_shared_memory_is_charged_once(container: Container, make_arbiter: ArbiterMaker, way: str) -> None:
    arbiter = make_arbiter(LIMIT)
    with pair(container, way, ends=True) as (_, importer):
        assert arbiter.charged() == [SHARED]
        importer.communicate("\n", timeout=10)
        assert importer.returncode == 0
        _rest_is(container, LIMIT - SHARED)
    _rest_is(container, LIMIT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dies", ["its maker", "who imported it"])
def test_killed_process_refunds_only_its_own_charges(
    container: Container, make_arbiter: ArbiterMaker, way: str, dies: str
) -> None:
    arbiter = make_arbiter(LIMIT)
    with pair(container, way, takes_bytes=10 * MIB) as (maker, importer):
        assert sorted(arbiter.charged()) == [10 * MIB, SHARED]
        _kill(maker if dies == "its maker" else importer)
        _rest_is(container, LIMIT - (10 * MIB if dies == "its maker" else SHARED))
    _rest_is(container, LIMIT)


def test_processes_that_share_and_die_never_exceed_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    gpu, dice = Gpu(container), random.Random(11)
    try:
        for way in list(WAYS) * 3:
            with pair(container, way) as both, finishing(container.start(command(storm))) as beside:
                assert beside.stdout is not None
                assert beside.stdout.readline() == "started\n"
                for process in dice.sample(both, 2):
                    assert gpu.most_used() <= LIMIT
                    _kill(process)
                assert gpu.most_used() <= LIMIT
                assert beside.poll() is None
            _rest_is(container, LIMIT)
    finally:
        gpu.close()
