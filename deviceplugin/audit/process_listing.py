"""Looks at the node: NVML's lists of processes between two readings of the ledgers, and what the kernel says of each.

Blocking, for threads: what the driver says for that of the driver, and what the kernel says for another. A process
that hangs in the driver keeps whoever reads what it has mapped, and no question of the driver is to wait for that.

A process is asked about once and then only whether it is still the same one: what a program has
mapped is a long text, and the library does not leave a process that it is in. What a container has mapped is looked at
for so long in one look, and then the others have their turn.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from deviceplugin.arbiter.ledgers import pages
from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.audit.excess import Place
from deviceplugin.audit.overhead import Key, Reading
from deviceplugin.audit.seen import Problem, Seen, SeenMember, SeenProcess, SeenShare, Who
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.host import kernel_process
from deviceplugin.host.identity import Container
from gpushare import contract
from gpushare.gpu import Gpu, Mode
from gpushare.refusal import Refusal

LIBRARY: Final = PurePosixPath(contract.CONTAINER_LIBRARY).name
CONTAINER_SECONDS: Final = 0.25  # of one look, for what the processes of one container have mapped
LEDGER: Final = f"/memfd:{pages.LEDGER_NAME} (deleted)"  # how the kernel calls one that is mapped


class LimitsPageView(Protocol):
    """What the audit reads of a limits page."""

    def read(self) -> tuple[pages.LimitsRecord, ...]:
        """What it says of each GPU. Raises PagesError."""


class RegisteredView(Protocol):
    """A process that has a slot."""

    @property
    def pid(self) -> int: ...
    @property
    def start_ticks(self) -> int: ...


class ShareLedgerView(Protocol):
    """A share that has processes, by slot, and its pages."""

    @property
    def tenant(self) -> Tenant: ...
    @property
    def members(self) -> Mapping[int, RegisteredView]: ...
    @property
    def limits(self) -> LimitsPageView: ...
    @property
    def ledger(self) -> pages.Ledger: ...

    def certain(self, slot: int, gpu: int) -> tuple[int, int]:
        """What a process says is on a GPU for certain, and how often it was about to be less. Raises PagesError."""

    def overhead_bytes(self, slot: int, gpu: int) -> int:
        """What is counted of a process on a GPU beyond its charges."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """What the kernel said of a process."""

    name: str
    container: Container | Refusal
    with_library: bool | None
    left_behind: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What was seen, and what the processes of shares held; `silent`: GPUs of which that is unknown this time.

    used: for what part of the time since the last look the driver ran kernels of a share, where it tells.
    works: whether anything of a share can have run since then, by all that is known.
    """

    seen: Seen
    readings: dict[Key, Reading]
    silent: frozenset[str]
    used: dict[Place, float]
    works: dict[Place, bool]


@dataclasses.dataclass(frozen=True, slots=True)
class DriverListing:
    """What the driver said: the processes that it lists, by GPU, and the rest as in `Look`."""

    readings: dict[Key, Reading]
    listed: list[tuple[str, nvml.NvmlProcess]]
    problems: list[Problem]
    silent: frozenset[str]
    used: dict[Place, float]
    works: dict[Place, bool]


class Looking:
    """Remembers from look to look what does not change.

    lost_ticks: who began before that, in the kernel's ticks, may go by a ledger of which nothing is left.
    """

    def __init__(
        self, driver: nvml.Nvml, *, identify: Identify, lost_ticks: Callable[[], int], proc: Path = kernel_process.PROC
    ) -> None:
        self._driver = driver
        self._identify = identify
        self._proc = proc
        self._known: dict[Who, _Known] = {}
        self._spent_seconds = collections.defaultdict[Container | Refusal, float](float)  # in this look
        self._lost_ticks = lost_ticks
        self._told_us: dict[str, int] = {}  # up to when the driver has told what was used of a GPU

    def look(self, gpus: Sequence[Gpu], groups: Sequence[ShareLedgerView], unreachable: Iterable[Who]) -> Look:
        """Look once, in one thread. What ends or begins meanwhile may be seen or not."""
        return self.describe(self.measure(gpus, groups), gpus, groups, unreachable)

    def measure(self, gpus: Sequence[Gpu], groups: Sequence[ShareLedgerView]) -> DriverListing:
        """What the driver says, between two readings of the ledgers."""
        readings: dict[Key, Reading] = {}
        listed: list[tuple[str, nvml.NvmlProcess]] = []
        problems: list[Problem] = []
        silent = set()
        for gpu in gpus:
            try:
                running = self._measure(gpu.uuid, groups, readings)
            except nvml_call.NvmlError as error:
                silent.add(gpu.uuid)
                # One that may not be given to anybody is told of by its own condition.
                if gpu.healthy:
                    problems.append(Problem(f"the driver does not list the processes on GPU {gpu.index}: {error}"))
                continue
            listed += [(gpu.uuid, process) for process in running]
            if any(process.memory_bytes is None for process in running) and gpu.mode is Mode.FRACTIONAL:
                sentence = f"the driver does not tell what processes hold on GPU {gpu.index}: contexts are not charged"
                problems.append(Problem(sentence, blind=False))
        # Shares of MIG devices: their processes are listed with the GPU, and measured there.
        for uuid in {grant.uuid for group in groups for grant in group.tenant.grants} - {gpu.uuid for gpu in gpus}:
            try:
                self._measure(uuid, groups, readings)
            except nvml_call.NvmlError as error:
                silent.add(uuid)
                problems.append(Problem(f"the driver does not list the processes on {uuid}: {error}", blind=False))
        return DriverListing(readings, listed, problems, frozenset(silent), *self._used(gpus, groups))

    def describe(
        self,
        measured: DriverListing,
        gpus: Sequence[Gpu],
        groups: Sequence[ShareLedgerView],
        unreachable: Iterable[Who],
    ) -> Look:
        """What the kernel says of whom the driver lists, and of whoever is in a share."""
        self._spent_seconds.clear()
        shares = [share for group in groups if (share := self._share(group)) is not None]
        members = {member.who[0]: member.who for share in shares for member in share.members}
        processes = [
            seen_process
            for uuid, process in measured.listed
            if (seen_process := self._process(uuid, process, members)) is not None
        ]
        there = {process.who for process in processes} | set(members.values())
        self._known = {who: known for who, known in self._known.items() if who in there}
        seen = Seen(tuple(gpus), tuple(processes), tuple(shares), frozenset(unreachable), tuple(measured.problems))
        return Look(seen, measured.readings, measured.silent, measured.used, measured.works)

    def _used(
        self, gpus: Sequence[Gpu], groups: Sequence[ShareLedgerView]
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
                    works[place] = not all(kernel_process.is_stopped(pid, proc=self._proc) for pid in pids)
        return used, works

    def _utilization(self, gpu: Gpu) -> Mapping[int, float] | None:
        """By pid, since the last look; None at the first one, and where the driver does not tell."""
        since_us = self._told_us.pop(gpu.uuid, 0)
        try:
            utilization = self._driver.utilization(gpu.uuid, since_us)
        except nvml_call.NvmlError:
            return None
        if utilization is not None:
            self._told_us[gpu.uuid] = utilization.until_us
        return utilization.parts if utilization is not None and since_us else None

    def _measure(
        self, uuid: str, groups: Sequence[ShareLedgerView], readings: dict[Key, Reading]
    ) -> tuple[nvml.NvmlProcess, ...]:
        """List a GPU's processes; add the readings of those that belong to shares. Raises NvmlError."""
        seats = _Seats(groups, uuid)
        before = seats.charged()
        running = self._driver.users(uuid)
        used = {process.pid: process.memory_bytes for process in running}
        for who, (charged_bytes, expected_bytes) in seats.charged().items():
            used_bytes = used.get(who[0])
            if who in before and used_bytes is not None:
                readings[uuid, who] = Reading(used_bytes, before[who][0], charged_bytes, expected_bytes)
        return running

    def _process(self, uuid: str, listed: nvml.NvmlProcess, members: dict[int, Who]) -> SeenProcess | None:
        """None: it is over, and the driver has yet to notice."""
        # A member's pid is its own as long as the arbiter holds its pidfd.
        who = members.get(listed.pid) or kernel_process.with_start(listed.pid, proc=self._proc)
        if who is None:
            return None
        known = self._ask(who, again=listed.pid not in members)
        return SeenProcess(
            uuid,
            *who,
            known.name,
            listed.memory_bytes,
            None if isinstance(known.container, Refusal) else known.container,
            with_library=known.with_library,
            left_behind=known.left_behind,
            outside=known.container.reason if isinstance(known.container, Refusal) else "",
        )

    def _share(self, group: ShareLedgerView) -> SeenShare | None:
        """None: its last process is gone, and it with them."""
        members = []
        try:
            enforced = group.limits.read()
            for slot, member in list(group.members.items()):
                who = (member.pid, member.start_ticks)
                members.append(SeenMember(who, group.ledger.slot_bytes(slot), self._ask(who, again=False).with_library))
        except pages.PagesError:
            return None
        return SeenShare(group.tenant, enforced, tuple(members))

    def _ask(self, who: Who, *, again: bool) -> _Known:
        """What the kernel says of a process. `again`: also if it is known, for whatever can change."""
        known = self._known.get(who)
        if known is None or again or not known.with_library:
            pid = who[0]
            container = self._identify(pid)
            if known is not None and known.with_library:
                mapped: tuple[bool | None, bool] = True, known.left_behind
            elif self._spent_seconds[container] < CONTAINER_SECONDS / (
                1 if known is None else 2
            ):  # new ones have a part
                began = time.monotonic()
                mapped = self._mapped(who)
                self._spent_seconds[container] += time.monotonic() - began
            else:
                mapped = (known.with_library, known.left_behind) if known is not None else (None, False)
            known = self._known[who] = _Known(self._name(pid), container, *mapped)
        return known

    def _name(self, pid: int) -> str:
        try:
            return (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return ""

    def _mapped(self, who: Who) -> tuple[bool | None, bool]:
        """Whether it has the library, and a ledger of which nothing may be left."""
        pid, start_ticks = who
        mapped = kernel_process.mapped_files(pid, proc=self._proc)
        if mapped is None:
            return None, False
        with_library = LIBRARY in {PurePosixPath(path).name for path in mapped}
        return with_library, start_ticks < self._lost_ticks() and LEDGER in mapped


class _Seats:
    """The shares on one GPU, and what each of their processes is charged there and told to expect of a context."""

    def __init__(self, groups: Sequence[ShareLedgerView], uuid: str) -> None:
        self._seats = [
            (group, gpu) for group in groups for gpu, grant in enumerate(group.tenant.grants) if grant.uuid == uuid
        ]

    def charged(self) -> dict[Who, tuple[int, int]]:
        charges = {}
        for group, gpu in self._seats:
            try:
                expected_bytes = group.limits.read()[gpu].context_bytes
                for slot, member in list(group.members.items()):
                    charged_bytes = group.ledger.slot_bytes(slot)[gpu]
                    charges[member.pid, member.start_ticks] = (charged_bytes, expected_bytes)
            except pages.PagesError:
                continue
        return charges
