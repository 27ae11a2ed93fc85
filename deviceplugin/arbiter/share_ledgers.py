"""All ledgers of this node by share: created for a share's first process, and closed after its last.

The event loop watches a pidfd of each process, so its slot is cleared as soon as the process is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from deviceplugin.arbiter import share_ledger, timetable
from deviceplugin.arbiter.share_ledger import JoinError, ShareLedger
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.denial.kernel import RegisteredMap
from deviceplugin.host import kernel_process, records
from deviceplugin.host.kernel_process import KernelProcess

logger = logging.getLogger(__name__)

REST: Final = 19  # pause of a share's checks after each one, as a multiple of its CPU time
FAILED_SECONDS: Final = 1.0  # pause after a check that failed
UNREACHABLE: Final = (
    "the node's agent was restarted and cannot inspect this container's other processes (it lacks SYS_PTRACE or "
    "CHECKPOINT_RESTORE): restart the container"
)


class ExecChecker:
    """Checks whether processes have become another program (exec), outside of the event loop that grants leases.

    `gone` is called with a ledger and its member that no longer has the ledger mapped.

    The list of a process's mappings can be very long, and the kernel writes it only while the process does not change
    its memory: a process that forks, or frees a lot, delays the reader. So each check runs in a thread that the loop
    never waits for. Each share has one check at a time, and at most a twentieth of a CPU. So no share can delay another
    one's checks or cost the node more than that, whatever its processes have mapped and however often they ask.
    """

    def __init__(self, gone: Callable[[ShareLedger, KernelProcess], None], *, proc: Path = kernel_process.PROC) -> None:
        self._gone, self._proc = gone, proc
        self._due: dict[str, dict[KernelProcess, tuple[ShareLedger, asyncio.Future[None]]]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}

    def check(self, share: ShareLedger, member: KernelProcess) -> asyncio.Future[None]:
        """Queue a check of this member. The future is done after the check and its call of `gone`."""
        key, loop = share.tenant.key, asyncio.get_running_loop()
        due = self._due.setdefault(key, {})
        if member not in due:
            due[member] = share, loop.create_future()
        if key not in self._working:
            self._working[key] = loop.create_task(self._work(key, due))
        return due[member][1]

    def close(self) -> None:
        """Cancel all checks. A running one finishes without effect."""
        for working in self._working.values():
            working.cancel()
        for _, future in (queued for due in self._due.values() for queued in due.values()):
            future.cancel()
        self._due.clear()
        self._working.clear()

    async def _work(self, key: str, due: dict[KernelProcess, tuple[ShareLedger, asyncio.Future[None]]]) -> None:
        while due:
            # Remove it before the check: what the process does from here on needs another check.
            member = next(iter(due))
            share, future = due.pop(member)
            pause_seconds = 0.0
            try:
                if share.contains(member):
                    found, took_seconds = await _in_thread(member.pid, share.ledger.device_inode, self._proc)
                    pause_seconds = REST * took_seconds
                    if found.known and found.link is None and share.contains(member):
                        self._gone(share, member)
            except Exception:  # such as no thread, or a full disk; go on with the others
                logger.exception("Could not check a process for exec", extra={"pid": member.pid})
                pause_seconds = FAILED_SECONDS
            finally:
                if not future.done():
                    future.set_result(None)
            await asyncio.sleep(pause_seconds)
        del self._due[key], self._working[key]


async def _in_thread(pid: int, device_inode: tuple[int, int], proc: Path) -> tuple[kernel_process.Mapping, float]:
    """Find where a process has a file mapped, in a daemon thread, and the CPU seconds that this took.

    Time spent waiting for the process is not counted: it costs the node nothing.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[kernel_process.Mapping, float]] = loop.create_future()

    def finish(found: kernel_process.Mapping, took_seconds: float) -> None:
        if not answer.done():
            answer.set_result((found, took_seconds))

    def read() -> None:
        found = kernel_process.mapping(pid, device_inode, proc=proc)
        with contextlib.suppress(RuntimeError):  # the loop has ended since
            loop.call_soon_threadsafe(finish, found, time.thread_time())

    threading.Thread(target=read, name="exec-check", daemon=True).start()
    return await answer


@dataclasses.dataclass(frozen=True, slots=True)
class ShareUse:
    """The memory that a share's processes hold, by GPU of its grants. `overhead_bytes`: beyond their charges."""

    tenant: Tenant
    used_bytes: tuple[int, ...]
    processes: int
    overhead_bytes: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class ShareLedgers:
    """The node's ledgers, inside a running event loop.

    directory: of the records; the next agent must use the same one. context_bytes: returns what to charge for a context
    on a GPU, by UUID, before it is created. unclaimed_bytes: returns how much of a GPU, by its place in the share,
    belongs to no process other than the one in this slot; None if unknown. lost_ticks: when records were lost last, in
    kernel ticks; earlier processes may use a ledger that no longer exists. unreachable: by share, the processes whose
    ledgers cannot be opened. registered: the kernel's map of registered processes, where the others are denied the
    devices.
    """

    directory: Path
    _: dataclasses.KW_ONLY
    proc: Path = kernel_process.PROC
    context_bytes: Callable[[str], int] = lambda _: 0
    unclaimed_bytes: Callable[[ShareLedger, int, int], Awaitable[int | None]] | None = None
    registered: RegisteredMap | None = None

    def __post_init__(self) -> None:
        self._boot_id = kernel_process.boot_id(proc=self.proc)
        self._shares: dict[str, ShareLedger] = {}
        self.unreachable: dict[str, list[KernelProcess]] = {}
        self.lost_ticks = 0
        self._exec_checker = ExecChecker(self._on_exec, proc=self.proc)
        # called when a recovered share has no outdated page any more
        self.on_pages_current: Callable[[], None] = lambda: None
        # called with a share, a GPU by its place in it, and the bytes of a refused charge
        self.lend: Callable[[ShareLedger, int, int], Awaitable[None]] | None = None

    def recover(self) -> None:
        lost_ticks = share_ledger.read_loss(self.directory, self._boot_id)
        self.lost_ticks = lost_ticks or 0
        if lost_ticks is None or not self.directory.exists():
            self._record_loss()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        missing = kernel_process.missing_capabilities()
        if missing:
            # Warn before the next restart: that agent will have the same capabilities.
            logger.warning(
                "Ledgers cannot be taken over after a restart of the agent: containers will have to restart too",
                extra={"missing_capabilities": list(missing)},
            )
        for path in share_ledger.record_paths(self.directory):
            try:
                record = share_ledger.read_record(path)
            except share_ledger.RecordError as error:
                # The slots' owners are unknown without it, so no process may get that ledger.
                aside = records.set_aside(path)
                extra: dict[str, object] = {"err": str(error), "set_aside": str(aside)}
                logger.error("Dropped a ledger's record", extra=extra)  # noqa: TRY400
                self._record_loss()
                path.unlink(missing_ok=True)
                continue
            old = share_ledger.take_over(record, proc=self.proc) if record.boot_id == self._boot_id else ()
            if isinstance(old, ShareLedger):
                self._shares[record.tenant.key] = old
                for member in old.members.values():
                    self._watch(old, member)
                    self._exec_checker.check(old, member)
                self.record(old, old.tenant)
                logger.info("Took over a ledger", extra={**_log_fields(old.tenant), "processes": len(old.members)})
            elif not old:
                path.unlink()
            else:
                self.unreachable[record.tenant.key] = list(old)
                for holder in old:
                    asyncio.get_running_loop().add_reader(holder.pidfd, self._on_holder_exit, record.tenant, holder)
                extra = {**_log_fields(record.tenant), "processes": len(old), "err": UNREACHABLE}
                logger.error("Could not take over a ledger", extra=extra)
        if self.registered is not None:
            holders = (*self.unreachable.values(), *(share.members.values() for share in self._shares.values()))
            self.registered.replace((process.pid, process.start_ticks) for holder in holders for process in holder)
        self.publish_timetable()

    def join(self, tenant: Tenant, who: KernelProcess) -> tuple[ShareLedger, int]:
        """Return the share's ledger, and the slot of this process, which is the same one if it joins again.

        Raises JoinError, and OSError if the record cannot be written. The caller keeps its own pidfd; the ledger
        duplicates it. Joining does not change the amounts of a running share: only ShareResizer does.
        """
        if tenant.key in self.unreachable:
            raise JoinError(UNREACHABLE)
        share = self._shares.get(tenant.key)
        if share is not None and [had.uuid for had in share.tenant.grants] != [grant.uuid for grant in tenant.grants]:
            raise JoinError("the share is on other GPUs now: end all processes of the container that use the old ones")
        made = share is None
        share = ShareLedger.make(tenant) if share is None else share
        # Records lack these.
        share.complete(tenant)
        try:
            self.expect_contexts(share)
            slot = share.slot_of(who)
            if slot is not None:
                self._register(who)
                return share, slot
            slot = share.free_slot()
            share_ledger.write_record(self.directory, share.record(self._boot_id, joining=(slot, who)))
            self._register(who)
            member = dataclasses.replace(who, pidfd=os.dup(who.pidfd))
        except BaseException:
            if made:
                share.close()
            raise
        share.admit(member, slot)
        self._shares[tenant.key] = share
        self._watch(share, member)
        if made:
            self.publish_timetable()
        return share, slot

    async def check_exec(self, tenant: Tenant, who: KernelProcess) -> bool:
        """Return whether the process has a slot already. If so, first check that it has not become another program."""
        share = self._shares.get(tenant.key)
        slot = share.slot_of(who) if share is not None else None
        if share is None or slot is None:
            return False
        # Shield the check: other callers may wait for it too.
        await asyncio.shield(self._exec_checker.check(share, share.members[slot]))
        return True

    def publish_timetable(self) -> None:
        """Write into all limits pages when to launch while no arbiter runs. Call it whenever amounts have changed."""
        table = timetable.timetable(share.tenant for share in self._shares.values())
        for key, share in self._shares.items():
            for gpu, turn in enumerate(table[key]):
                share.limits.set_launch_slot(gpu, turn)

    def reap(self, share: ShareLedger) -> None:
        for slot, member in list(share.members.items()):
            if member.is_dead():
                self._release(share, slot)

    async def measure(self, share: ShareLedger, who: KernelProcess, gpu: int) -> int | None:
        """Measure how much of a GPU belongs to no known process, from now on; None if unknown."""
        slot = share.slot_of(who)
        return None if slot is None or self.unclaimed_bytes is None else await self.unclaimed_bytes(share, slot, gpu)

    def disconnected(self, share: ShareLedger, who: KernelProcess) -> None:
        """Release the slot of a process that closed its socket, if that was because of an exec."""
        slot = share.slot_of(who)
        if slot is not None and not who.is_dead():
            self._exec_checker.check(share, share.members[slot])

    def uses(self) -> Iterator[ShareUse]:
        for share in self._shares.values():
            yield ShareUse(share.tenant, share.used_bytes(), len(share.members), share.limits.overhead_bytes())

    def all(self) -> tuple[ShareLedger, ...]:
        return tuple(self._shares.values())

    def expect_contexts(self, share: ShareLedger) -> None:
        for gpu, grant in enumerate(share.tenant.grants):
            share.limits.set_context_bytes(gpu, self.context_bytes(grant.uuid))

    def confirm_page(self, share: ShareLedger, who: KernelProcess) -> None:
        """Record that a welcomed process sent a message, so it has switched to the current limits page."""
        slot = share.slot_of(who)
        if slot is not None and share.outdated:
            share.use_current_page(slot)
            if not share.outdated:
                self.on_pages_current()

    def record(self, share: ShareLedger, tenant: Tenant) -> bool:
        """Record the amounts that the share is about to get. Return False if the disk write failed.

        After a failure the old file may name one process too many, which the next agent will find dead.
        """
        try:
            share_ledger.write_record(self.directory, share.record(self._boot_id, tenant=tenant))
        except OSError as error:
            logger.warning("Could not write a ledger's record", extra={**_log_fields(share.tenant), "err": str(error)})
            return False
        return True

    def close(self) -> None:
        """Close all ledgers. Their records stay for the next agent."""
        self._exec_checker.close()
        for share in self._shares.values():
            for member in share.members.values():
                asyncio.get_running_loop().remove_reader(member.pidfd)
            share.close()
        self._shares.clear()
        for holders in self.unreachable.values():
            for holder in holders:
                self._close_holder(holder)
        self.unreachable.clear()

    def _record_loss(self) -> None:
        own = kernel_process.with_start(os.getpid(), proc=self.proc)
        self.lost_ticks = own[1] if own is not None else 0
        share_ledger.write_loss(self.directory, self._boot_id, self.lost_ticks)

    def _register(self, who: KernelProcess) -> None:
        if self.registered is not None:
            try:
                self.registered.add(who.pid, who.start_ticks)
            except OSError as error:
                raise JoinError(f"the kernel did not register this process: {error}") from error

    def _watch(self, share: ShareLedger, member: KernelProcess) -> None:
        asyncio.get_running_loop().add_reader(member.pidfd, self._on_exit, share, member)

    def _on_exit(self, share: ShareLedger, member: KernelProcess) -> None:
        slot = share.slot_of(member)
        if slot is not None:
            self._release(share, slot)

    def _on_exec(self, share: ShareLedger, member: KernelProcess) -> None:
        logger.debug("A process has become another program", extra={**_log_fields(share.tenant), "pid": member.pid})
        self._on_exit(share, member)

    def _on_holder_exit(self, tenant: Tenant, holder: KernelProcess) -> None:
        self._close_holder(holder)
        if self.registered is not None:
            self.registered.drop(holder.pid)
        self.unreachable[tenant.key].remove(holder)
        if not self.unreachable[tenant.key]:
            del self.unreachable[tenant.key]
            share_ledger.record_path(self.directory, tenant).unlink(missing_ok=True)

    def _close_holder(self, holder: KernelProcess) -> None:
        asyncio.get_running_loop().remove_reader(holder.pidfd)
        os.close(holder.pidfd)

    def _release(self, share: ShareLedger, slot: int) -> None:
        member = share.members[slot]
        asyncio.get_running_loop().remove_reader(member.pidfd)
        freed = share.release(slot)
        if self.registered is not None:
            self.registered.drop(member.pid)
        extra = {**_log_fields(share.tenant), "pid": member.pid, "slot": slot, "freed_bytes": freed}
        # A container can start and end processes very fast. Only log those that leave bytes behind.
        logger.log(logging.INFO if freed else logging.DEBUG, "Cleared the slot of a process that is gone", extra=extra)
        if share.members:
            self.record(share, share.tenant)
            return
        del self._shares[share.tenant.key]
        share.close()
        self.publish_timetable()
        share_ledger.record_path(self.directory, share.tenant).unlink(missing_ok=True)  # last, because it may fail


def _log_fields(tenant: Tenant) -> dict[str, object]:
    return {"pod": {"namespace": tenant.namespace, "name": tenant.pod}, "containers": list(tenant.containers)}
