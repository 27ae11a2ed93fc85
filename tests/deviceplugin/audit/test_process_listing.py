"""Process scans: missing driver data is reported, and processes that exit meanwhile are left out."""

from __future__ import annotations

import dataclasses
import mmap
import os
import time
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.arbiter import pages
from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.audit import process_listing
from deviceplugin.audit.overhead import Reading
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from gpushare.gpunode import Gpu, Mode

UUID = "GPU-00000000-0000-0000-0000-00000000000a"
GPU = Gpu(UUID, 0, "A100", 40 << 30)
TENANT = Tenant("uid", "ml", "trainer", ("main",), 0, (Grant(UUID, 8 << 30, 50, 100),))
GONE = 2**22 + 1  # above the largest possible pid


class Listing:
    """Process lists of a driver that does not report everything."""

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


def made(listing: Listing, *, lost_ticks: int = 0) -> process_listing.ProcessScanner:
    return process_listing.ProcessScanner(
        listing,  # type: ignore[arg-type]
        identify=lambda _: Container("uid", "id"),
        lost_ticks=lambda: lost_ticks,
    )


class Scan:
    """A scan of the driver's lists, and then of the kernel's view of the same processes."""

    def __init__(self, scanner: process_listing.ProcessScanner, gpu: Gpu, *groups: ShareLedger) -> None:
        shares: list[Any] = list(groups)
        self.listing = scanner.measure([gpu], shares)
        self.seen = scanner.describe(self.listing, [gpu], shares, [])


@pytest.fixture
def group() -> ShareLedger:
    return ShareLedger.make(TENANT)


def joined(group: ShareLedger) -> kernel_process.KernelProcess:
    identity = kernel_process.with_start(os.getpid())
    assert identity is not None
    who = kernel_process.KernelProcess(*identity, os.pidfd_open(os.getpid()))
    group.admit(who, 3)
    return who


def test_reads_ledgers_before_and_after_the_driver(group: ShareLedger) -> None:
    who = joined(group)
    group.limits.set_context_bytes(0, 250)
    result = Scan(made(Listing(nvml.NvmlProcess(who.pid, 1000))), GPU, group)
    assert result.listing.readings == {(UUID, (who.pid, who.start_ticks)): Reading(1000, 0, 0, 250)}
    (process,) = result.seen.processes
    assert process.identity == (who.pid, who.start_ticks)
    assert result.seen.shares[0].members[0].with_library is False
    assert result.seen.problems == ()
    group.close()


def test_measuring_does_not_read_mappings(group: ShareLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs in the driver would block all other driver calls."""
    who = joined(group)
    looking, looked = made(Listing(nvml.NvmlProcess(who.pid, 1000))), list[int]()
    monkeypatch.setattr(kernel_process, "mapped_files", lambda pid, **_: looked.append(pid))
    measured = looking.measure([GPU], [group])
    assert looked == []
    assert looking.describe(measured, [GPU], [group], []).shares
    assert set(looked) == {who.pid}
    group.close()


def test_reports_a_driver_without_process_memory(group: ShareLedger) -> None:
    who = joined(group)
    result = Scan(made(Listing(nvml.NvmlProcess(who.pid, None))), GPU, group)
    assert result.listing.readings == {}
    (problem,) = result.seen.problems
    assert (problem.blind, problem.sentence) == (
        False,
        "the driver does not report how much memory processes use on GPU 0: contexts are not charged",
    )
    other = dataclasses.replace(GPU, mode=Mode.EXCLUSIVE)
    assert Scan(made(Listing(nvml.NvmlProcess(who.pid, None))), other, group).seen.problems == ()
    group.close()


def test_reports_a_silent_gpu_unless_it_is_unhealthy() -> None:
    result = Scan(made(Listing(problem="it is lost")), GPU)
    assert result.listing.silent == {UUID}
    assert [problem.blind for problem in result.seen.problems] == [True]
    ill = dataclasses.replace(GPU, healthy=False)
    assert Scan(made(Listing(problem="it is lost")), ill).seen.problems == ()


def test_share_usage_sums_its_processes_since_the_last_scan(group: ShareLedger) -> None:
    who = joined(group)
    place = (UUID, TENANT.key)
    listing = Listing(used=({who.pid: 0.9}, {who.pid: 0.5, GONE: 0.3}, {GONE: 0.3}, None, {who.pid: 0.1}))
    looks = made(listing)
    results = [Scan(looks, GPU, group) for _ in range(5)]
    assert [result.listing.used.get(place) for result in results] == [None, 0.5, 0, None, None]
    assert [result.listing.works[place] for result in results] == [True, True, False, True, True]
    assert listing.asked_us == [0, 7, 14, 21, 0]
    other = dataclasses.replace(GPU, mode=Mode.MPS)
    assert Scan(looks, other, group).listing.used == {}
    group.close()


def test_without_driver_usage_a_share_works_unless_stopped(group: ShareLedger, tmp_path: Path) -> None:
    who = joined(group)
    looks = process_listing.ProcessScanner(
        Listing(),  # type: ignore[arg-type]
        identify=lambda _: Container("uid", "id"),
        lost_ticks=lambda: 0,
        proc=tmp_path,
    )
    works = []
    (tmp_path / str(who.pid)).mkdir()
    for state in "STtD":
        (tmp_path / str(who.pid) / "stat").write_bytes(b"%d (a) T \xff) %s 1" % (who.pid, state.encode()))
        works += Scan(looks, GPU, group).listing.works.values()
    assert works == [True, False, False, True]
    group.close()


def test_omits_an_exited_process() -> None:
    assert Scan(made(Listing(nvml.NvmlProcess(GONE, 1000))), GPU).seen.processes == ()


def test_omits_an_ended_share(group: ShareLedger) -> None:
    joined(group)
    group.close()
    assert Scan(made(Listing()), GPU, group).seen.shares == ()


def test_reads_mapped_files(tmp_path: Path) -> None:
    maps = tmp_path / str(os.getpid())
    maps.mkdir()
    lines = (
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 12   /usr/lib/gpushare/libgpushare.so\n7ffd0000-7ffd1000 rw-p\n"
    )
    (maps / "maps").write_text(lines)
    assert kernel_process.mapped_files(os.getpid(), proc=tmp_path) == {"/usr/lib/gpushare/libgpushare.so"}
    inodes = kernel_process.mapped_inodes(os.getpid(), "/usr/lib/gpushare/libgpushare.so", proc=tmp_path)
    assert inodes == {(os.makedev(8, 1), 12)}
    assert kernel_process.mapped_inodes(os.getpid(), "/usr/lib/other.so", proc=tmp_path) == frozenset()
    (maps / "maps").write_text("")
    assert kernel_process.mapped_files(os.getpid(), proc=tmp_path) is None  # it is exiting, or it is a kernel thread
    assert kernel_process.mapped_files(GONE, proc=tmp_path) is None
    assert kernel_process.mapped_inodes(GONE, "/usr/lib/other.so", proc=tmp_path) is None


def test_reading_huge_mappings_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert kernel_process.mapped_inodes(os.getpid(), "/tmp/999", proc=tmp_path) is None


def test_reading_mappings_of_one_container_is_limited_per_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forty processes without the library take 10 ms each; another container has one process."""
    looked = []

    def mapped_files(pid: int, **_: object) -> frozenset[str]:
        looked.append(pid)
        time.sleep(0.01)
        return frozenset()

    monkeypatch.setattr(kernel_process, "with_start", lambda pid, **_: (pid, 7))
    monkeypatch.setattr(kernel_process, "mapped_files", mapped_files)
    looks = process_listing.ProcessScanner(
        Listing(*(nvml.NvmlProcess(pid, 1000) for pid in range(1, 42))),  # type: ignore[arg-type]
        identify=lambda pid: Container("uid", "other" if pid == 41 else "hostile"),
        lost_ticks=lambda: 0,
    )
    monkeypatch.setattr(process_listing, "CONTAINER_SECONDS", 0.1)
    with_library = {process.pid: process.with_library for process in Scan(looks, GPU).seen.processes}
    assert len(looked) <= 11
    assert with_library[41] is False
    assert list(with_library.values()).count(None) == 41 - len(looked)
    known = {pid for pid, loaded in with_library.items() if loaded is False}
    again = {process.pid: process.with_library for process in Scan(looks, GPU).seen.processes}
    assert all(again[pid] is False for pid in known), "known results are kept"


def test_only_processes_from_before_the_loss_are_orphaned() -> None:
    """Any process can create something that looks like a ledger."""
    own = kernel_process.with_start(os.getpid())
    assert own is not None
    descriptor = os.memfd_create(pages.LEDGER_NAME)
    os.ftruncate(descriptor, mmap.PAGESIZE)

    def orphaned(lost_ticks: int) -> bool:
        listing = Listing(nvml.NvmlProcess(own[0], 1000))
        (process,) = Scan(made(listing, lost_ticks=lost_ticks), GPU).seen.processes
        return process.orphaned

    assert not orphaned(own[1] + 1)
    with mmap.mmap(descriptor, mmap.PAGESIZE):
        assert orphaned(own[1] + 1)
        assert not orphaned(own[1])
        assert not orphaned(0)
    os.close(descriptor)
