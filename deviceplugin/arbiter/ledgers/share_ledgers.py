"""All ledgers of this node, by share; made for the first process of a share, let go after its last.

Each living process is watched by its pidfd, so a slot is cleared when the kernel says so, whether or not anybody asks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.arbiter.ledgers import ledger_record, recovery, timetable
from deviceplugin.arbiter.ledgers.exec_checker import ExecChecker
from deviceplugin.arbiter.ledgers.share_ledger import JoinError, ShareLedger
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.denial.registered import RegisteredMap
from deviceplugin.disk import whole_file
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import KernelProcess

logger = logging.getLogger(__name__)

DIRECTORY_MODE: Final = 0o700
UNREACHABLE: Final = (
    "the node's agent was restarted and may not look into this container's other processes (it needs SYS_PTRACE and "
    "CHECKPOINT_RESTORE): restart the container"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ShareUse:
    """What a share's processes hold now, by GPU in the order of its grants.

    overhead_bytes: beyond what they have charged.
    """

    tenant: Tenant
    used_bytes: tuple[int, ...]
    processes: int
    overhead_bytes: tuple[int, ...]


async def nothing_known(share: ShareLedger, slot: int, gpu: int) -> int | None:
    """Where nobody measures: no memory is known beyond what is charged."""
    del share, slot, gpu
    return None


class ShareLedgers:
    """The node's ledgers. To be used in a running event loop.

    directory: where the records are kept; it must be one that the next agent finds again.
    context_bytes: by the UUID of a GPU, what a context on it is to be charged before it is made.
    unclaimed_bytes: how much of a GPU, by its place in the share, nobody is known to hold beside what the process of a
        slot says itself; None where that is unknown.
    registered: the kernel, where it denies the devices to all who have no slot.
    """

    def __init__(
        self,
        directory: Path,
        *,
        proc: Path = kernel_process.PROC,
        context_bytes: Callable[[str], int] = lambda _: 0,
        unclaimed_bytes: Callable[[ShareLedger, int, int], Awaitable[int | None]] = nothing_known,
        registered: RegisteredMap | None = None,
    ) -> None:
        self._directory = directory
        self._registered = registered
        self._proc = proc
        self._boot_id = kernel_process.boot_id(proc=proc)
        self._context_bytes = context_bytes
        self._unclaimed_bytes = unclaimed_bytes
        self._groups: dict[str, ShareLedger] = {}
        self._unreachable: dict[str, list[KernelProcess]] = {}
        self._lost_ticks = 0
        self._exec_checker = ExecChecker(self._on_exec, proc=proc)
        self.on_pages_current: Callable[[], None] = lambda: None  # called once that is so of a group from before

    def recover(self) -> None:
        """Take over what the last agent left."""
        lost_ticks = recovery.read_loss(self._directory, self._boot_id)
        self._lost_ticks = lost_ticks or 0
        if lost_ticks is None or not self._directory.exists():
            self._record_loss()
        self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        missing = kernel_process.missing_capabilities()
        if missing:
            # Said now and not when it is too late: the next agent will be one like this.
            logger.warning(
                "Ledgers cannot be taken over after a restart: containers would have to be restarted too",
                extra={"missing_capabilities": list(missing)},
            )
        for path in ledger_record.all_in(self._directory):
            try:
                record = ledger_record.read(path)
            except ledger_record.RecordError as error:
                # Without it nobody knows whose the slots are, so no old ledger is given to anyone.
                aside = whole_file.set_aside(path)
                why = {"err": str(error), "set_aside": str(aside)}
                logger.error("Dropped a ledger's record", extra=why)  # noqa: TRY400
                self._record_loss()
                path.unlink(missing_ok=True)
                continue
            old = recovery.take_over(record, proc=self._proc) if record.boot_id == self._boot_id else None
            if old is None:
                path.unlink()
            elif isinstance(old, ShareLedger):
                self._groups[record.tenant.key] = old
                for member in old.members.values():
                    self._watch(old, member)
                    self._exec_checker.check(old, member)
                self.record(old, old.tenant)
                logger.info("Took over a ledger", extra={**_named(old.tenant), "processes": len(old.members)})
            else:
                self._unreachable[record.tenant.key] = list(old.holders)
                for holder in old.holders:
                    asyncio.get_running_loop().add_reader(holder.pidfd, self._on_holder_exit, record.tenant, holder)
                extra = {**_named(record.tenant), "processes": len(old.holders), "err": UNREACHABLE}
                logger.error("Could not take over a ledger", extra=extra)
        if self._registered is not None:
            holders = (*self._unreachable.values(), *(group.members.values() for group in self._groups.values()))
            self._registered.keep((process.pid, process.start_ticks) for holder in holders for process in holder)
        self.publish_timetable()

    @property
    def lost_ticks(self) -> int:
        """Processes that began before may go by a ledger of which nothing is left; in the kernel's ticks."""
        return self._lost_ticks

    def join(self, tenant: Tenant, who: KernelProcess) -> tuple[ShareLedger, int]:
        """A slot for a process; the same one if it has one. Raises JoinError, and OSError when nothing can be recorded.

        What a share with processes may use is changed by `resizing` alone. The caller keeps its own pidfd; the group
        holds another.
        """
        if tenant.key in self._unreachable:
            raise JoinError(UNREACHABLE)
        share = self._groups.get(tenant.key)
        if share is not None and not _same_gpus(share.tenant, tenant):
            raise JoinError("the share is on other GPUs now: end all processes of the container that use the old ones")
        made = share is None
        share = ShareLedger.make(tenant) if share is None else share
        share.tenant = dataclasses.replace(share.tenant, group=tenant.group)  # no record has it
        try:
            self.expect_contexts(share)
            slot = share.slot_of(who)
            if slot is not None:
                self._register(who)
                return share, slot
            slot = share.free_slot()
            ledger_record.write(self._directory, share.record(self._boot_id, joining=(slot, who)))
            self._register(who)
            member = dataclasses.replace(who, pidfd=os.dup(who.pidfd))
        except BaseException:
            if made:
                share.close()
            raise
        share.admit(member, slot)
        self._groups[tenant.key] = share
        self._watch(share, member)
        if made:
            self.publish_timetable()
        return share, slot

    async def check_exec(self, tenant: Tenant, who: KernelProcess) -> bool:
        """Whether the process had a slot, which it may have had as another program: then it has been looked at."""
        share = self._groups.get(tenant.key)
        slot = share.slot_of(who) if share is not None else None
        if share is None or slot is None:
            return False
        # Others may wait for the same look, and go on to.
        await asyncio.shield(self._exec_checker.check(share, share.members[slot]))
        return True

    def publish_timetable(self) -> None:
        """Tell all when to launch while there is no arbiter; to be called once a share is given more or less."""
        table = timetable.timetable(group.tenant for group in self._groups.values())
        for key, share in self._groups.items():
            for gpu, turn in enumerate(table[key]):
                share.limits.set_launch_slot(gpu, turn)

    def reap(self, share: ShareLedger) -> None:
        """Clear the slots of processes that are dead by now."""
        for slot in list(share.dead_slots()):
            self._release(share, slot)

    async def measure(self, share: ShareLedger, who: KernelProcess, gpu: int) -> int | None:
        """Look, from now on, how much of a GPU nobody is known to hold; None where that is unknown."""
        slot = share.slot_of(who)
        return await self._unclaimed_bytes(share, slot, gpu) if slot is not None else None

    def disconnected(self, share: ShareLedger, who: KernelProcess) -> None:
        """A process closed its socket: give up its slot if that was because it became another program."""
        slot = share.slot_of(who)
        if slot is not None and not who.is_dead():
            self._exec_checker.check(share, share.members[slot])

    def uses(self) -> Iterator[ShareUse]:
        """What the processes of every share hold."""
        for group in self._groups.values():
            yield ShareUse(group.tenant, group.used_bytes(), len(group.members), group.limits.overhead_bytes())

    def all(self) -> tuple[ShareLedger, ...]:
        """Every share with a process."""
        return tuple(self._groups.values())

    def expect_contexts(self, share: ShareLedger) -> None:
        """Tell the processes of a share what is to be charged for a context now."""
        for gpu, grant in enumerate(share.tenant.grants):
            share.limits.set_context_bytes(gpu, self._context_bytes(grant.uuid))

    def unreachable(self) -> Mapping[str, Sequence[KernelProcess]]:
        """The processes, by share, of which we cannot tell what they hold."""
        return self._unreachable

    def is_unreachable(self, pod_uid: str, share: int) -> bool:
        """Whether the share has processes of which we cannot tell what they hold."""
        return f"{pod_uid}-{share}" in self._unreachable

    def confirm_page(self, share: ShareLedger, who: KernelProcess) -> None:
        """A process said something after it was welcomed, so it has put our limits page in place of what it had."""
        slot = share.slot_of(who)
        if slot is not None and share.outdated:
            share.use_current_page(slot)
            if not share.outdated:
                self.on_pages_current()

    def record(self, share: ShareLedger, tenant: Tenant) -> bool:
        """Write down what the share is about to be given, for the next agent; False if that is not possible.

        Then the file that is there may name a process too many, which the next agent will find dead.
        """
        try:
            ledger_record.write(self._directory, share.record(self._boot_id, tenant=tenant))
        except OSError as error:
            logger.warning("Could not write a ledger's record", extra={**_named(share.tenant), "err": str(error)})
            return False
        return True

    def close(self) -> None:
        """Let go of everything; the records stay for the next agent."""
        self._exec_checker.close()
        for group in self._groups.values():
            for member in group.members.values():
                asyncio.get_running_loop().remove_reader(member.pidfd)
            group.close()
        self._groups.clear()
        for holders in self._unreachable.values():
            for holder in holders:
                self._close_holder(holder)
        self._unreachable.clear()

    def _record_loss(self) -> None:
        own = kernel_process.with_start(os.getpid(), proc=self._proc)
        self._lost_ticks = own[1] if own is not None else 0
        recovery.write_loss(self._directory, self._boot_id, self._lost_ticks)

    def _register(self, who: KernelProcess) -> None:
        if self._registered is not None:
            try:
                self._registered.add(who.pid, who.start_ticks)
            except OSError as error:
                raise JoinError(f"the kernel could not be told that this process may use its GPU: {error}") from error

    def _watch(self, share: ShareLedger, member: KernelProcess) -> None:
        asyncio.get_running_loop().add_reader(member.pidfd, self._on_exit, share, member)

    def _on_exit(self, share: ShareLedger, member: KernelProcess) -> None:
        slot = share.slot_of(member)
        if slot is not None:
            self._release(share, slot)

    def _on_exec(self, share: ShareLedger, member: KernelProcess) -> None:
        logger.debug("A process is another program now", extra={**_named(share.tenant), "pid": member.pid})
        self._on_exit(share, member)

    def _on_holder_exit(self, tenant: Tenant, holder: KernelProcess) -> None:
        self._close_holder(holder)
        if self._registered is not None:
            self._registered.drop(holder.pid)
        self._unreachable[tenant.key].remove(holder)
        if not self._unreachable[tenant.key]:
            del self._unreachable[tenant.key]
            ledger_record.path_of(self._directory, tenant).unlink(missing_ok=True)

    def _close_holder(self, holder: KernelProcess) -> None:
        asyncio.get_running_loop().remove_reader(holder.pidfd)
        os.close(holder.pidfd)

    def _release(self, share: ShareLedger, slot: int) -> None:
        member = share.members[slot]
        asyncio.get_running_loop().remove_reader(member.pidfd)
        freed = share.release(slot)
        if self._registered is not None:
            self._registered.drop(member.pid)
        extra = {**_named(share.tenant), "pid": member.pid, "slot": slot, "freed_bytes": freed}
        # A container can have processes come and go as fast as can be: of those that leave nothing nobody has to know.
        logger.log(logging.INFO if freed else logging.DEBUG, "Cleared the slot of a process that is gone", extra=extra)
        if share.members:
            self.record(share, share.tenant)
            return
        del self._groups[share.tenant.key]
        share.close()
        self.publish_timetable()
        ledger_record.path_of(self._directory, share.tenant).unlink(missing_ok=True)  # the last: it may fail


def _same_gpus(tenant: Tenant, other: Tenant) -> bool:
    return [grant.uuid for grant in tenant.grants] == [grant.uuid for grant in other.grants]


def _named(tenant: Tenant) -> dict[str, object]:
    return {"pod": {"namespace": tenant.namespace, "name": tenant.pod}, "containers": list(tenant.containers)}
