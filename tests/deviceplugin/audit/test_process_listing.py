"""What a driver does not tell is said, and what ends while it is looked at is left out."""

from __future__ import annotations

import dataclasses
import mmap
import os
import time
from pathlib import Path

import pytest

from deviceplugin.arbiter.ledgers import pages
from deviceplugin.arbiter.ledgers.share_ledger import ShareLedger
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.audit import process_listing
from deviceplugin.audit.overhead import Reading
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.host import kernel_process
from deviceplugin.host.identity import Container
from gpushare.gpu import Gpu, Mode

UUID = "GPU-00000000-0000-0000-0000-00000000000a"
GPU = Gpu(UUID, 0, "A100", 40 << 30)
TENANT = Tenant("uid", "ml", "trainer", ("main",), 0, (Grant(UUID, 8 << 30, 50, 100),))
GONE = 2**22 + 1  # more than a pid can be


class Listing:
    """NVML's lists, as a driver that does not tell everything gives them."""

    def __init__(
        self, *listed: nvml.NvmlProcess, problem: str = "", used: tuple[dict[int, float] | None, ...] = ()
    ) -> None:
        self.listed, self.problem, self.used = listed, problem, list(used)
        self.asked_us: list[int] = []

    def users(self, _: str) -> tuple[nvml.NvmlProcess, ...]:
        if self.problem:
            raise nvml_call.NvmlError(self.problem, 15)
        return self.listed

    def utilization(self, _: str, since_us: int) -> nvml.Utilization | None:
        self.asked_us.append(since_us)
        parts = self.used.pop(0) if self.used else None
        return nvml.Utilization(parts, 7 * len(self.asked_us)) if parts is not None else None


def made(listing: Listing, *, lost_ticks: int = 0) -> process_listing.Looking:
    return process_listing.Looking(
        listing,  # type: ignore[arg-type]
        identify=lambda _: Container("uid", "id"),
        lost_ticks=lambda: lost_ticks,
    )


@pytest.fixture
def group() -> ShareLedger:
    return ShareLedger.make(TENANT)


def joined(group: ShareLedger) -> kernel_process.KernelProcess:
    identity = kernel_process.with_start(os.getpid())
    assert identity is not None
    who = kernel_process.KernelProcess(*identity, os.pidfd_open(os.getpid()))
    group.admit(who, 3)
    return who


def test_a_member_is_read_before_and_after_the_driver(group: ShareLedger) -> None:
    who = joined(group)
    group.limits.set_context_bytes(0, 250)
    result = made(Listing(nvml.NvmlProcess(who.pid, 1000))).look([GPU], [group], [])
    assert result.readings == {(UUID, (who.pid, who.start_ticks)): Reading(1000, 0, 0, 250)}
    (process,) = result.seen.processes
    assert process.who == (who.pid, who.start_ticks)
    assert result.seen.shares[0].members[0].with_library is False
    assert result.seen.problems == ()
    group.close()


def test_the_driver_is_asked_without_a_look_at_what_processes_have_mapped(
    group: ShareLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs in the driver would keep all other questions of the driver waiting."""
    who = joined(group)
    looking, looked = made(Listing(nvml.NvmlProcess(who.pid, 1000))), list[int]()
    monkeypatch.setattr(kernel_process, "mapped_files", lambda pid, **_: looked.append(pid))
    measured = looking.measure([GPU], [group])
    assert looked == []
    assert looking.describe(measured, [GPU], [group], []).readings
    assert set(looked) == {who.pid}
    group.close()


def test_what_is_held_on_a_mig_device_is_measured_too(group: ShareLedger) -> None:
    who = joined(group)
    whole = dataclasses.replace(GPU, uuid="GPU-00000000-0000-0000-0000-00000000000b", mode=Mode.MIG)
    result = made(Listing(nvml.NvmlProcess(who.pid, 1000))).look([whole], [group], [])
    assert result.readings == {(UUID, (who.pid, who.start_ticks)): Reading(1000, 0, 0, 0)}
    assert [process.gpu for process in result.seen.processes] == [whole.uuid]
    group.close()


def test_a_driver_that_does_not_tell_what_processes_hold_is_told_of(group: ShareLedger) -> None:
    who = joined(group)
    result = made(Listing(nvml.NvmlProcess(who.pid, None))).look([GPU], [group], [])
    assert result.readings == {}
    (problem,) = result.seen.problems
    assert (problem.blind, problem.sentence) == (
        False,
        "the driver does not tell what processes hold on GPU 0: contexts are not charged",
    )
    other = dataclasses.replace(GPU, mode=Mode.EXCLUSIVE)
    assert made(Listing(nvml.NvmlProcess(who.pid, None))).look([other], [group], []).seen.problems == ()
    group.close()


def test_a_gpu_that_does_not_answer_is_told_of_unless_its_own_condition_does() -> None:
    result = made(Listing(problem="it is lost")).look([GPU], [], [])
    assert result.silent == {UUID}
    assert [problem.blind for problem in result.seen.problems] == [True]
    ill = dataclasses.replace(GPU, healthy=False)
    assert made(Listing(problem="it is lost")).look([ill], [], []).seen.problems == ()


def test_what_a_share_used_is_what_its_processes_did_since_the_last_look(group: ShareLedger) -> None:
    who = joined(group)
    place = (UUID, TENANT.key)
    listing = Listing(used=({who.pid: 0.9}, {who.pid: 0.5, GONE: 0.3}, {GONE: 0.3}, None, {who.pid: 0.1}))
    looks = made(listing)
    results = [looks.look([GPU], [group], []) for _ in range(5)]
    assert [result.used.get(place) for result in results] == [None, 0.5, 0, None, None]
    assert [result.works[place] for result in results] == [True, True, False, True, True]
    assert listing.asked_us == [0, 7, 14, 21, 0]
    other = dataclasses.replace(GPU, mode=Mode.MPS)
    assert looks.look([other], [group], []).used == {}
    group.close()


def test_where_the_driver_does_not_tell_a_share_works_unless_its_processes_are_stopped(
    group: ShareLedger, tmp_path: Path
) -> None:
    who = joined(group)
    looks = process_listing.Looking(
        Listing(),  # type: ignore[arg-type]
        identify=lambda _: Container("uid", "id"),
        lost_ticks=lambda: 0,
        proc=tmp_path,
    )
    works = []
    (tmp_path / str(who.pid)).mkdir()
    for state in "STtD":
        (tmp_path / str(who.pid) / "stat").write_bytes(b"%d (a) T \xff) %s 1" % (who.pid, state.encode()))
        works += looks.look([GPU], [group], []).works.values()
    assert works == [True, False, False, True]
    group.close()


def test_a_process_that_is_over_already_is_left_out() -> None:
    assert made(Listing(nvml.NvmlProcess(GONE, 1000))).look([GPU], [], []).seen.processes == ()


def test_a_share_that_has_ended_meanwhile_is_left_out(group: ShareLedger) -> None:
    joined(group)
    group.close()
    assert made(Listing()).look([GPU], [group], []).seen.shares == ()


def test_who_has_the_library_mapped_is_seen(tmp_path: Path) -> None:
    maps = tmp_path / str(os.getpid())
    maps.mkdir()
    lines = (
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 12   /usr/lib/gpushare/libgpushare.so\n7ffd0000-7ffd1000 rw-p\n"
    )
    (maps / "maps").write_text(lines)
    assert kernel_process.mapped_files(os.getpid(), proc=tmp_path) == {"/usr/lib/gpushare/libgpushare.so"}
    (maps / "maps").write_text("")
    assert kernel_process.mapped_files(os.getpid(), proc=tmp_path) is None  # it is ending, or a thread of the kernel
    assert kernel_process.mapped_files(GONE, proc=tmp_path) is None


def test_who_has_too_much_mapped_is_not_looked_at_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / str(os.getpid())
    directory.mkdir()
    names = (f"/tmp/{number}" for number in range(1000))
    lines = "".join(
        f"{number:012x}-{number:012x} r--p 0 08:01 {number}   {name}\n" for number, name in enumerate(names)
    )
    (directory / "maps").write_text(lines)
    last = (os.makedev(8, 1), 999)
    assert kernel_process.mapping(os.getpid(), last, proc=tmp_path).link is not None
    monkeypatch.setattr(kernel_process, "MAX_MAPS_BYTES", len(lines) // 2)
    assert 400 < len(kernel_process.mapped_files(os.getpid(), proc=tmp_path) or ()) < 600
    assert kernel_process.mapping(os.getpid(), last, proc=tmp_path) == kernel_process.Mapping(known=False, link=None)


def test_what_one_container_has_mapped_takes_so_long_of_a_look_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forty processes without the library, each of which takes a hundredth of a second, and one of another container."""
    looked = []

    def mapped_files(pid: int, **_: object) -> frozenset[str]:
        looked.append(pid)
        time.sleep(0.01)
        return frozenset()

    monkeypatch.setattr(kernel_process, "identified", lambda pid, **_: (pid, 7))
    monkeypatch.setattr(kernel_process, "mapped_files", mapped_files)
    looks = process_listing.Looking(
        Listing(*(nvml.NvmlProcess(pid, 1000) for pid in range(1, 42))),  # type: ignore[arg-type]
        identify=lambda pid: Container("uid", "other" if pid == 41 else "hostile"),
        lost_ticks=lambda: 0,
    )
    monkeypatch.setattr(process_listing, "CONTAINER_SECONDS", 0.1)
    with_library = {process.pid: process.with_library for process in looks.look([GPU], [], []).seen.processes}
    assert len(looked) <= 11
    assert with_library[41] is False
    assert list(with_library.values()).count(None) == 41 - len(looked)
    known = {pid for pid, loaded in with_library.items() if loaded is False}
    again = {process.pid: process.with_library for process in looks.look([GPU], [], []).seen.processes}
    assert all(again[pid] is False for pid in known), "what was known of it is not forgotten"


def test_only_who_began_before_records_were_lost_is_left_behind_with_a_ledger() -> None:
    """What looks like a ledger, anybody can make."""
    own = kernel_process.with_start(os.getpid())
    assert own is not None
    descriptor = os.memfd_create(pages.LEDGER_NAME)
    os.ftruncate(descriptor, mmap.PAGESIZE)

    def left_behind(lost_ticks: int) -> bool:
        listing = Listing(nvml.NvmlProcess(own[0], 1000))
        (process,) = made(listing, lost_ticks=lost_ticks).look([GPU], [], []).seen.processes
        return process.left_behind

    assert not left_behind(own[1] + 1)
    with mmap.mmap(descriptor, mmap.PAGESIZE):
        assert left_behind(own[1] + 1)
        assert not left_behind(own[1])
        assert not left_behind(0)
    os.close(descriptor)
