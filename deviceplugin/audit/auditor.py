"""The audit loop: scans the node, charges contexts, checks the limits and reports the result.

A process that bypassed its limits is killed only if that is configured, through a pidfd, and only if it still is the
process that was checked: its pid alone may have been reused.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin.arbiter import timetable
from deviceplugin.arbiter.scheduling import leases
from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.audit import excess, node_audit, overhead, process_limits, process_listing
from deviceplugin.audit.killed_clients import Clients, KilledClients
from deviceplugin.audit.node_audit import AuditedProcess, NodeAudit, Problem, SeenProcess, SeenShare
from deviceplugin.audit.overhead import ContextSizes
from deviceplugin.hardware.nvml import Driver
from deviceplugin.host import kernel_process
from deviceplugin.link.arbiter import Arbiter
from deviceplugin.memory_limits.plan import HardLimitState
from deviceplugin.mps.shares import MpsShares
from gpushare import contract
from gpushare.allocation import Isolation
from gpushare.gpunode import Condition, Gpu, GpuNode
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

Terminate = Callable[[str, tuple[int, int]], Awaitable[None]]

SECONDS: Final = 2.0  # between two audits
# After a start, programs may still use the share of time that they have without an arbiter. Later, a program that does
# so ignores the running arbiter.
WITHOUT_ARBITER_SECONDS: Final = leases.SETTLING_NS / 1e9
_LOGGED: Final = {
    contract.EVENT_UNLIMITED: "A process runs without limits",
    contract.EVENT_BEYOND: "A share runs beyond its limit",
    contract.EVENT_MPS_CLIENT_KILLED: "An MPS client was killed",
}
MAX_KILLS: Final = 8  # at a time
MAX_EVENTS: Final = 20  # per audit, so that a tenant that starts many processes cannot flood the API server


@dataclasses.dataclass(eq=False)
class Auditor:
    """Audits until cancelled. audit: the last result. conditions: the GPUNode's conditions that follow from it.

    gpus: with modes, and MIG devices in place of GPUs that are cut for shares. node: the GPUNode as last seen; None
    while unknown. pods: the node's pods. warn: sends an Event with this reason and note about the GPUNode and, by
    namespace and name, a pod. changed: called when `conditions` change. driver_limits: the driver's memory limits. mps:
    the MPS daemons of shares; mps_pids: the PIDs of gpushare's MPS daemons. parents: the GPU of each MIG device.
    killed_clients: gets changed pods elsewhere; None if a killed MPS client does not affect the others.
    end_unlimited: whether to kill processes of share containers that bypass their limits.
    """

    driver: Driver
    arbiter: Arbiter
    contexts: ContextSizes
    _: dataclasses.KW_ONLY
    gpus: Callable[[], tuple[Gpu, ...]]
    node: Callable[[], GpuNode | None]
    pods: Callable[[], Iterable[PodJson]]
    warn: Callable[[str, str, tuple[str, str] | None], None]
    changed: Callable[[], None]
    node_name: str
    identify: Identify
    driver_limits: Callable[[], Iterable[HardLimitState]] = tuple
    mps: MpsShares | None = None
    mps_pids: Callable[[], frozenset[int]] = frozenset
    parents: Callable[[], Mapping[str, str]] = dict
    killed_clients: KilledClients | None = None
    end_unlimited: bool = False
    proc: Path = kernel_process.PROC
    wall_clock: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._scanner = process_listing.ProcessScanner(
            self.driver.nvml,
            identify=self.identify,
            lost_ticks=lambda: self.arbiter.reported.lost_ticks,
            mps_pids=self.mps_pids,
            proc=self.proc,
        )
        self._overheads = overhead.Overheads()
        self._excess = excess.Excess()
        self._usage = excess.DriverUsage()
        self._reported: frozenset[Hashable] = frozenset()
        self._events_left = 0
        self._checked_at: float | None = None
        self._compared_from: float | None = None
        self._scans = 0
        self._silent = frozenset[str]()  # MPS daemons that did not list their clients
        self._hanging: Mapping[str, str] = {}  # by the UUID of a GPU whose MPS clients may hang
        self.audit = NodeAudit()
        self.conditions: tuple[Condition, ...] = ()

    async def run(self) -> None:
        while True:
            await self.step()
            await asyncio.sleep(SECONDS)

    async def step(self) -> None:
        """Audit once. A failure is logged and reported, and does not end the loop."""
        try:
            await self._step()
        except Exception as error:
            logger.exception("The audit failed")
            self._publish(dataclasses.replace(self.audit, problems=(Problem(f"the audit failed: {error}"),)))
        self._scans += 1
        if self.has_measured:
            self.arbiter.publish_measured()

    @property
    def used(self) -> Mapping[excess.Place, float]:
        """Each share's recent fraction of a GPU's time by the driver; unmeasured shares are missing."""
        return self._usage.recent

    @property
    def has_measured(self) -> bool:
        """Whether the memory beyond the charges is known, as far as the driver reports it."""
        return self._scans >= overhead.SCANS_TO_MEASURE

    async def _step(self) -> None:
        gpus = self.gpus()
        await self.arbiter.report()
        groups, unreachable = self.arbiter.shares.all(), self.arbiter.reported.unreachable
        measured = await self.driver.ask(self._scanner.measure, gpus, groups)
        seen = await asyncio.to_thread(self._scanner.describe, measured, gpus, groups, unreachable)
        self._charge(measured, gpus)
        self.arbiter.publish_activity(measured.works)
        now = self.clock()  # the time of the arbiter's accounts, even if reading them takes long
        await self.arbiter.report(turns=True)  # by then the limits pages contain the new charges
        # the shares with their present limits pages, without those that have ended
        there = {share.tenant.key: share.limits for share in self.arbiter.shares.all()}
        shares = tuple(
            dataclasses.replace(share, enforced=there[share.tenant.key].read())
            for share in seen.shares
            if share.tenant.key in there
        )
        self._compare(now, measured.used, shares)
        clients = await self._mps_clients(shares)
        node, pods = self.node(), tuple(self.pods())
        if self.killed_clients is not None:
            self._hanging = self.killed_clients.update(clients, shares, pods)
        seen = dataclasses.replace(
            seen,
            shares=shares,
            overuse=self._excess.overuse,
            driver_limits=tuple(self.driver_limits()),
            mps_clients={
                uuid: frozenset[int]().union(*servers.values())
                for uuid, servers in clients.items()
                if servers is not None
            },
            problems=(
                *seen.problems,
                *self._mps_problems(frozenset(uuid for uuid in clients if clients[uuid] is None)),
            ),
        )
        suspects = self.audit.suspects
        self._publish(await asyncio.to_thread(process_limits.check, seen, pods=pods, node=node, suspects=suspects))
        await self.arbiter.report()
        await self._report_troubles()

    async def _mps_clients(self, shares: Iterable[SeenShare]) -> Clients:
        if self.mps is None:
            return {}
        tenants = [share.tenant for share in shares if share.tenant.isolation is Isolation.MPS]
        uuids = sorted({grant.uuid for tenant in tenants for grant in tenant.grants})
        return dict(zip(uuids, await asyncio.gather(*map(self.mps.clients, uuids)), strict=True))

    def _mps_problems(self, silent: frozenset[str]) -> tuple[Problem, ...]:
        """Return the problems of the MPS daemons. silent: those that do not list their clients now."""
        refusing = self.mps.problems() if self.mps is not None else {}
        again, self._silent = self._silent & silent, silent  # a single missed answer may only mean a busy CPU
        return (
            *(
                Problem(f"the MPS daemon of {uuid} takes no new client: {refusing[uuid]}", blind=False)
                for uuid in refusing
            ),
            *(Problem(f"the MPS daemon of {uuid} does not list its clients") for uuid in sorted(again)),
            *(Problem(why, blind=False) for why in self._hanging.values()),
        )

    def _publish(self, audit: NodeAudit) -> None:
        self.audit = audit
        self._checked_at = self.wall_clock()
        conditions = (node_audit.condition(audit),)
        if conditions != self.conditions:
            self.conditions = conditions
            self.changed()

    def document(self) -> dict[str, Any] | None:
        if self._checked_at is None:
            return None
        return node_audit.to_json(
            self.audit, node_name=self.node_name, checked_at=self._checked_at, parents=self.parents()
        )

    def _charge(self, measured: process_listing.DriverListing, gpus: Iterable[Gpu]) -> None:
        """Charge each share for memory that its processes use beyond their charges, and learn the context sizes."""
        self._overheads.update(measured.readings, measured.silent)
        kinds = {gpu.uuid: self.contexts.kind(gpu) for gpu in gpus}
        learned = collections.defaultdict[str, list[int]](list)
        mps_clients = {
            (grant.uuid, (member.pid, member.start_ticks))
            for share in self.arbiter.shares.all()
            if share.tenant.isolation is Isolation.MPS
            for grant in share.tenant.grants
            for member in share.members.values()
        }
        for (uuid, identity), context_bytes in self._overheads.learned.items():
            # Not of MIG devices, which are not among the kinds, nor of MPS clients: their contexts are smaller.
            if uuid in kinds and (uuid, identity) not in mps_clients:
                learned[kinds[uuid]].append(context_bytes)
        self.contexts.learn({kind: tuple(sizes) for kind, sizes in learned.items()})
        for share in self.arbiter.shares.all():
            uuids = [grant.uuid for grant in share.tenant.grants]
            self.arbiter.publish_overheads(
                share,
                {
                    slot: [self._overheads.bytes_of((uuid, (member.pid, member.start_ticks))) for uuid in uuids]
                    for slot, member in share.members.items()
                },
            )
            self.arbiter.publish_context_bytes(uuids)

    def _compare(self, now: float, used: Mapping[excess.Place, float], shares: Iterable[SeenShare]) -> None:
        """Compare the GPU time that shares used, according to the driver, with the time that they were allowed."""
        self._usage.update(now, used)
        held = {(lease.gpu_uuid, lease.tenant.key): lease.had_seconds for lease in self.arbiter.shares.lease_usage()}
        self._compared_from = now if self._compared_from is None else self._compared_from
        turns = {
            (grant.uuid, share.tenant.key): record.turn_permille / timetable.PERIOD
            for share in (shares if now < self._compared_from + WITHOUT_ARBITER_SECONDS else ())
            for grant, record in zip(share.tenant.grants, share.enforced, strict=True)
        }
        # Only the arbiter's shares have turns. The percentage of MPS clients limits them in space, not in time.
        without_turns = {share.tenant.key for share in shares if share.tenant.isolation is not Isolation.ARBITER}
        in_turns = {place: part for place, part in used.items() if place[1] not in without_turns}
        self._excess.update(now, used=in_turns, held=held, turns=turns)

    async def _report_troubles(self) -> None:
        """Send one Event per process and share, and kill processes if that is configured."""
        troubles = process_limits.troubles(self.audit)
        to_kill = process_limits.processes_to_kill(self.audit) if self.end_unlimited else ()
        certain = {process.key for process in to_kill}
        self._events_left = MAX_EVENTS
        registered = {
            (member.pid, member.start_ticks) for share in self.arbiter.shares.all() for member in share.members.values()
        }
        new = {
            key: audited
            for key, audited in troubles.items()
            if audited.process.identity not in registered or audited.reason == process_limits.NOT_A_CLIENT
        }  # the others have registered since the scan
        await self._kill([audited for key, audited in new.items() if key in certain])
        for key, audited in new.items():
            if key not in certain and key not in self._reported:
                self._event(audited, node_audit.process_sentence(self.audit, audited))
        reported: set[Hashable] = {*troubles, *self._hanging.values()}
        for uuid, why in self._hanging.items():
            if why not in self._reported:
                self._warn(contract.EVENT_MPS_CLIENT_KILLED, why, None, {"gpu": uuid})
        for share in self.audit.shares:
            if share.overuse is not None:
                key = (share.namespace, share.pod, share.containers, share.gpu)
                is_new = key not in self._reported and key not in reported
                reported.add(key)
                if is_new:
                    note = node_audit.share_sentence(self.audit, share, share.overuse.sentence)
                    self._warn(contract.EVENT_BEYOND, note, (share.namespace, share.pod), {"gpu": share.gpu})
        self._reported = frozenset(reported)

    async def _kill(self, audited: Sequence[AuditedProcess]) -> None:
        processes = [each.process for each in audited]
        terminate = self.mps.terminate if self.mps is not None else None
        problems = await kill_all(processes, terminate=terminate, identify=self.identify, proc=self.proc)
        for each, problem in zip(audited, problems, strict=True):
            what = f"it could not be killed: {problem}" if problem else "it was killed because of --end-unlimited"
            if not problem or each.key not in self._reported:
                self._event(each, f"{node_audit.process_sentence(self.audit, each)}; {what}")

    def _event(self, audited: AuditedProcess, note: str) -> None:
        extra = {"gpu": audited.process.gpu, "pid": audited.process.pid, "state": str(audited.state)}
        self._warn(contract.EVENT_UNLIMITED, note, (audited.namespace, audited.pod) if audited.pod else None, extra)

    def _warn(self, reason: str, note: str, of: tuple[str, str] | None, extra: Mapping[str, object]) -> None:
        if self._events_left == 0:
            return
        self._events_left -= 1
        pod = {"pod": {"namespace": of[0], "name": of[1]}} if of is not None else {}
        logger.warning(_LOGGED[reason], extra={**extra, **pod, "note": note})
        self.warn(reason, note, of)


async def kill_all(
    processes: Iterable[SeenProcess],
    *,
    terminate: Terminate | None,
    identify: Identify,
    proc: Path = kernel_process.PROC,
) -> list[str]:
    """Kill processes, some at a time, as an MPS daemon may take seconds to end a client. Return the results of `kill`.

    terminate: has the MPS daemon of a GPU, by UUID, end this client's work first.
    """
    free = asyncio.Semaphore(MAX_KILLS)

    async def end(process: SeenProcess) -> str:
        async with free:
            if terminate is not None:
                await terminate(process.gpu, process.identity)
            return kill(process, identify=identify, proc=proc)

    return await asyncio.gather(*map(end, processes))


def kill(process: SeenProcess, *, identify: Identify, proc: Path = kernel_process.PROC) -> str:
    """Kill a process. Return why that was impossible, or "". A process that has exited needs no kill."""
    running = kernel_process.find(process.pid, process.start_ticks, proc=proc)
    if running is None:
        return ""
    try:
        if process.container is None or identify(process.pid) != process.container:
            return "it is in another container now"
        signal.pidfd_send_signal(running.pidfd, signal.SIGKILL)
    except PermissionError:
        return "the agent lacks the capability KILL (config/components/end-unlimited)"
    except ProcessLookupError:
        return ""
    except OSError as error:
        return str(error)
    finally:
        os.close(running.pidfd)
    return ""
