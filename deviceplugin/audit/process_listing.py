"""Scans the node: NVML's process lists between two readings of the ledgers, and the kernel's view of each process.

Everything here blocks and runs in threads. Reading the mappings of a process that hangs in the driver can block, so the
kernel's part runs outside of the driver's thread. The mappings are a long text, and the library never leaves a process:
so a process is described once and afterwards only checked for identity, in a limited time per container and scan.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from deviceplugin.arbiter import pages
from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.audit.excess import Place
from deviceplugin.audit.node_audit import Problem, ProcessIdentity, Seen, SeenMember, SeenProcess, SeenShare
from deviceplugin.audit.overhead import Key, Reading
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from deviceplugin.link.node_shares import RunningShare
from gpushare import contract
from gpushare.gpunode import Gpu, Mode
from gpushare.refusal import Refusal

LIBRARY: Final = PurePosixPath(contract.CONTAINER_LIBRARY).name
CONTAINER_SECONDS: Final = 0.25  # per scan, for the mappings of one container's processes


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """The kernel's description of a process."""

    name: str
    container: Container | Refusal
    with_library: bool | None
    orphaned: bool


@dataclasses.dataclass(frozen=True, slots=True)
class DriverListing:
    """The driver's part of a scan: the listed processes by GPU. silent: GPUs that could not be listed this time.

    used: the fraction of time since the last scan in which the driver ran kernels of a share, if it reports that.
    works: whether anything of a share may have run since then.
    """

    readings: dict[Key, Reading]
    listed: list[tuple[str, nvml.NvmlProcess]]
    problems: list[Problem]
    silent: frozenset[str]
    used: dict[Place, float]
    works: dict[Place, bool]


@dataclasses.dataclass(eq=False)
class ProcessScanner:
    """Scans processes, and remembers what does not change between scans.

    lost_ticks: the time at which ledger records were lost; processes that started earlier may use an orphaned ledger.
    mps_pids: returns the PIDs of our MPS daemons; their children are the MPS servers.
    """

    driver: nvml.Nvml
    _: dataclasses.KW_ONLY
    identify: Identify
    lost_ticks: Callable[[], int]
    mps_pids: Callable[[], frozenset[int]] = frozenset
    proc: Path = kernel_process.PROC

    def __post_init__(self) -> None:
        self._known: dict[ProcessIdentity, _Known] = {}
        self._spent_seconds = collections.defaultdict[Container | Refusal, float](float)  # in this scan
        self._read_until_us: dict[str, int] = {}  # by GPU: the end of the last utilisation sample

    def measure(self, gpus: Sequence[Gpu], groups: Sequence[RunningShare]) -> DriverListing:
        """Read the driver's lists between two readings of the ledgers."""
        readings: dict[Key, Reading] = {}
        listed: list[tuple[str, nvml.NvmlProcess]] = []
        problems: list[Problem] = []
        silent = set()
        for gpu in gpus:
            try:
                running = self._measure(gpu.uuid, groups, readings)
            except nvml_call.NvmlError as error:
                silent.add(gpu.uuid)
                # An unhealthy GPU has its own condition.
                if gpu.healthy:
                    problems.append(Problem(f"the driver does not list the processes on GPU {gpu.index}: {error}"))
                continue
            listed += [(gpu.uuid, process) for process in running]
            if any(process.memory_bytes is None for process in running) and gpu.mode is Mode.FRACTIONAL:
                memory = f"the driver does not report how much memory processes use on GPU {gpu.index}"
                problems.append(Problem(f"{memory}: contexts are not charged", blind=False))
        return DriverListing(readings, listed, problems, frozenset(silent), *self._used(gpus, groups))

    def describe(
        self,
        measured: DriverListing,
        gpus: Sequence[Gpu],
        groups: Sequence[RunningShare],
        unreachable: Iterable[ProcessIdentity],
    ) -> Seen:
        """Describe the listed processes and the members of shares from the kernel's view."""
        self._spent_seconds.clear()
        shares = [share for group in groups if (share := self._share(group)) is not None]
        members = {member.identity[0]: member.identity for share in shares for member in share.members}
        unknown = {process.pid for _, process in measured.listed} - members.keys()
        daemons = self.mps_pids() if unknown else frozenset[int]()
        servers = {pid for pid in unknown if kernel_process.parent(pid, proc=self.proc) in daemons} | daemons
        processes = [
            dataclasses.replace(seen_process, mps_server=process.pid in servers)
            for uuid, process in measured.listed
            if (seen_process := self._process(uuid, process, members)) is not None
        ]
        there = {process.identity for process in processes} | set(members.values())
        self._known = {identity: known for identity, known in self._known.items() if identity in there}
        return Seen(tuple(gpus), tuple(processes), tuple(shares), frozenset(unreachable), tuple(measured.problems))

    def _used(
        self, gpus: Sequence[Gpu], groups: Sequence[RunningShare]
    ) -> tuple[dict[Place, float], dict[Place, bool]]:
        utilizations: dict[str, Mapping[int, float]] = {}
        for gpu in gpus:
            utilization = self._utilization(gpu) if gpu.mode is Mode.FRACTIONAL else None
            if utilization is not None:
                utilizations[gpu.uuid] = utilization
        used, works = {}, {}
        for group in groups:
            pids = [member.pid for member in list(group.members.values())]
            for grant in group.tenant.grants:
                place = (grant.uuid, group.tenant.key)
                if grant.uuid in utilizations:
                    used[place] = min(1.0, sum(utilizations[grant.uuid].get(pid, 0.0) for pid in pids))
                    works[place] = used[place] > 0
                else:
                    works[place] = not all(kernel_process.is_stopped(pid, proc=self.proc) for pid in pids)
        return used, works

    def _utilization(self, gpu: Gpu) -> Mapping[int, float] | None:
        """Return the utilisation by pid since the last scan; None at the first scan or if it is not reported."""
        since_us = self._read_until_us.pop(gpu.uuid, 0)
        try:
            utilization = self.driver.utilization(gpu.uuid, since_us)
        except nvml_call.NvmlError:
            return None
        if utilization is not None:
            self._read_until_us[gpu.uuid] = utilization.until_us
        return utilization.parts if utilization is not None and since_us else None

    def _measure(
        self, uuid: str, groups: Sequence[RunningShare], readings: dict[Key, Reading]
    ) -> tuple[nvml.NvmlProcess, ...]:
        """List a GPU's processes, and add the readings of those that belong to shares. Raises NvmlError."""
        before = _charged(groups, uuid)
        running = self.driver.users(uuid)
        used = {process.pid: process.memory_bytes for process in running}
        for identity, (charged_bytes, expected_bytes) in _charged(groups, uuid).items():
            used_bytes = used.get(identity[0])
            if identity in before and used_bytes is not None:
                readings[uuid, identity] = Reading(used_bytes, before[identity][0], charged_bytes, expected_bytes)
        return running

    def _process(self, uuid: str, listed: nvml.NvmlProcess, members: dict[int, ProcessIdentity]) -> SeenProcess | None:
        """Describe a listed process; None if it has exited and the driver has not noticed."""
        # A member's pid cannot be reused while the arbiter holds its pidfd.
        identity = members.get(listed.pid) or kernel_process.with_start(listed.pid, proc=self.proc)
        if identity is None:
            return None
        known = self._describe_process(identity, again=listed.pid not in members)
        return SeenProcess(
            uuid,
            *identity,
            known.name,
            listed.memory_bytes,
            None if isinstance(known.container, Refusal) else known.container,
            with_library=known.with_library,
            orphaned=known.orphaned,
            outside=known.container.reason if isinstance(known.container, Refusal) else "",
        )

    def _share(self, group: RunningShare) -> SeenShare | None:
        """Describe a share; None if it ended with its last process."""
        members = []
        try:
            enforced = group.limits.read()
            for slot, member in list(group.members.items()):
                identity = (member.pid, member.start_ticks)
                with_library = self._describe_process(identity, again=False).with_library
                members.append(SeenMember(identity, group.ledger.slot_bytes(slot), with_library))
        except pages.PagesError:
            return None
        return SeenShare(group.tenant, enforced, tuple(members))

    def _describe_process(self, identity: ProcessIdentity, *, again: bool) -> _Known:
        """Describe a process from the kernel's view. again: refresh what can change, even if the process is known."""
        known = self._known.get(identity)
        if known is None or again or not known.with_library:
            pid = identity[0]
            container = self.identify(pid)
            if known is not None and known.with_library:
                mapped: tuple[bool | None, bool] = True, known.orphaned
            # half of the time is for new processes
            elif self._spent_seconds[container] < CONTAINER_SECONDS / (1 if known is None else 2):
                began = time.monotonic()
                mapped = self._mapped(identity)
                self._spent_seconds[container] += time.monotonic() - began
            else:
                mapped = (known.with_library, known.orphaned) if known is not None else (None, False)
            known = self._known[identity] = _Known(self._name(pid), container, *mapped)
        return known

    def _name(self, pid: int) -> str:
        try:
            return (self.proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return ""

    def _mapped(self, identity: ProcessIdentity) -> tuple[bool | None, bool]:
        """Return whether a process maps the library, and whether it maps an orphaned ledger."""
        pid, start_ticks = identity
        mapped = kernel_process.mapped_files(pid, proc=self.proc)
        if mapped is None:
            return None, False
        with_library = LIBRARY in {PurePosixPath(path).name for path in mapped}
        return with_library, start_ticks < self.lost_ticks() and pages.MAPPED_LEDGER in mapped


def _charged(groups: Sequence[RunningShare], uuid: str) -> dict[ProcessIdentity, tuple[int, int]]:
    """Return the charges of the shares' processes on a GPU, and the expected sizes of their contexts."""
    charges = {}
    for group in groups:
        for gpu, grant in enumerate(group.tenant.grants):
            if grant.uuid != uuid:
                continue
            try:
                expected_bytes = group.limits.read()[gpu].context_bytes
                for slot, member in list(group.members.items()):
                    charges[member.pid, member.start_ticks] = (group.ledger.slot_bytes(slot)[gpu], expected_bytes)
            except pages.PagesError:
                continue
    return charges
