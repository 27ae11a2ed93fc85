"""Tests that every function that starts work on a GPU waits for its lease, however it was found, and nothing else does."""

from __future__ import annotations

import dataclasses
import queue
import re
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import ROOT, Container, lines_of_the_library
from tests.interposer.launching import (
    OPEN,
    RELEASED,
    REVOKE,
    STINGY,
    WANT,
    client,
    ends_well,
    goes_on,
    line,
    waits_for_both_kernels,
)
from tests.interposer.programs import launches
from tests.interposer.programs.launching import nothing_else
from tests.interposer.reference_arbiter import ReferenceArbiter, Share
from tests.simgpu import mps_node
from tests.simgpu.conftest import Node

LAUNCHES = re.findall(
    r"^LAUNCH\(CUDA, (\w+),", (ROOT / "interposer" / "driver" / "hooks.def").read_text(), re.MULTILINE
)


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
def test_no_launch_passes_without_a_lease(container: Container, make_arbiter: ArbiterMaker, proc: bool) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, launches.every_launch, LAUNCHES, proc) as process:
        assert line(process) == "captured"
        with pytest.raises(queue.Empty):
            arbiter.hears(WANT, seconds=0.05)  # a captured launch is only recorded
        for number, name in enumerate(LAUNCHES, 1):
            goes_on(process)
            assert arbiter.hears(WANT) == (0, 0, 0)
            arbiter.say(OPEN, 0, contract.LEASE_COUNTED, number)
            assert line(process) == f"{name} 0"
            arbiter.say(REVOKE, 0, 0, number)
            while arbiter.hears(RELEASED)[2] != number:
                pass  # the previous lease, reported twice if it was returned as idle while it was revoked
        ends_well(process)


@pytest.mark.slow
def test_revoked_lease_is_returned_when_its_work_has_ended(container: Container, make_arbiter: ArbiterMaker) -> None:
    waits_for_both_kernels(container, make_arbiter(MIB, behaviour=STINGY), nothing_else)


def test_idle_lease_is_returned_while_others_wait(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, launches.launches_twice) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, 0, 1)
        assert line(process) == "idle"
        with pytest.raises(queue.Empty):
            arbiter.hears(RELEASED, seconds=0.05)  # no other share wants it
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED | contract.LEASE_CONTENDED, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)  # sent before RELEASED arrived, so it grants nothing
        goes_on(process)
        assert arbiter.hears(WANT) == (0, 0, 0)
        arbiter.say(OPEN, 0, 0, 2)
        ends_well(process)


@pytest.mark.slow
def test_late_open_of_a_returned_lease_is_ignored(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, launches.launches_twice) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED | contract.LEASE_CONTENDED, 1)
        assert line(process) == "idle"
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        goes_on(process)
        assert arbiter.hears(WANT) == (0, 0, 0)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)  # sent before RELEASED arrived
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        arbiter.say(OPEN, 0, 0, 2)
        ends_well(process)


@pytest.mark.slow
def test_counted_launches_do_not_run_far_ahead(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    for flags, least, most in ((contract.LEASE_COUNTED, 0.0, 0.3), (0, 0.3, 1.0)):
        with client(container, launches.launches_in_a_row) as process:
            arbiter.hears(WANT)
            arbiter.say(OPEN, 0, flags, 1)
            assert least <= float(ends_well(process)) < most


def test_each_gpu_has_its_own_gate(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, MIB, behaviour=STINGY)
    with client(container, launches.two_gpus) as process:
        assert arbiter.hears(WANT)[0] == 0
        arbiter.say(OPEN, 0, 0, 1)
        assert line(process) == "first"
        assert arbiter.hears(WANT)[0] == 1  # although the first one's gate is wide open
        arbiter.say(OPEN, 1, 0, 2)
        assert line(process) == "second"
        ends_well(process)


def test_ended_context_does_not_delay_the_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, launches.ends_a_context) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "gone"
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        goes_on(process)
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, 0, 2)
        ends_well(process)


@pytest.mark.slow
def test_program_without_an_arbiter_launches_for_its_requested_time(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)  # the share requests 50 percent
    with client(container, launches.launches_for_a_second) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "running"
        arbiter.stop()
        output, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors
        assert 20 < int(output) < 650, output
        assert len(lines_of_the_library(errors)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("begin", [0, 500])
def test_program_without_an_arbiter_launches_in_its_turn(
    container: Container, arbiter_directory: Path, uuids: list[str], begin: int
) -> None:
    share = Share(uuids[0], MIB, turn_permille=(begin, 300))
    with (
        ReferenceArbiter(arbiter_directory, [share], STINGY) as arbiter,
        client(container, launches.moments_of_launches) as process,
    ):
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "running"
        arbiter.stop()
        moments = [int(word) for word in ends_well(process).split()]
    within = sum((moment - begin) % 1000 < 400 for moment in moments)  # some are late on a busy machine
    # Launches at random times would give 0.4.
    assert within > 0.5 * len(moments), sorted(moments)


@pytest.mark.parametrize(
    ("isolation", "sentence"),
    [
        (contract.ISOLATION_MPS, "memory limits and MPS's limit on multiprocessors stay in force"),
        (contract.ISOLATION_NONE, "continues without limits, as its share's isolation is none"),
    ],
)
def test_program_of_a_share_without_leases_launches_freely_without_an_arbiter(
    container: Container, arbiter_directory: Path, uuids: list[str], isolation: int, sentence: str
) -> None:
    """Its first launch comes while the agent is away."""
    welcome = struct.pack(contract.WIRE_ISOLATION, isolation, 50, contract.CONTAINER_MPS_PIPE.encode())
    behaviour = dataclasses.replace(STINGY, more=welcome)
    share = Share(uuids[0], MIB, turn_permille=(0, 100))
    with (
        tempfile.TemporaryDirectory() as short_path,  # for sockets
        mps_node.daemon(Node(container.gpus), Path(short_path), "-m", CUDA_VISIBLE_DEVICES=uuids[0]) as mps,
        ReferenceArbiter(arbiter_directory, [share], behaviour) as arbiter,
        client(
            dataclasses.replace(container, mps_pipe=Path(mps.environment["CUDA_MPS_PIPE_DIRECTORY"])),
            launches.moments_of_launches,
        ) as process,
    ):
        arbiter.hears(WANT)
        arbiter.stop()
        assert line(process) == "running"
        output, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors
    assert {int(word) // 100 for word in output.split()} == set(range(10)), "at any time of the period"
    (said,) = lines_of_the_library(errors)
    assert sentence in said


def test_forked_child_has_no_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(MIB)
    with client(container, launches.forks) as process:
        ends_well(process)


def test_copies_and_fills_do_not_wait_for_a_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(MIB, behaviour=STINGY)
    container.program(launches.copies_and_fills)
