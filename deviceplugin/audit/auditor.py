"""The loop: look, judge, charge what contexts take, and tell everybody who has to know."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from deviceplugin.arbiter.ledgers import timetable
from deviceplugin.arbiter.scheduling import leases
from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.audit import (
    audit_document,
    ending,
    excess,
    overhead,
    process_limits,
    process_listing,
)
from deviceplugin.audit.contexts import ContextSizes
from deviceplugin.audit.node_audit import AuditedProcess, NodeAudit
from deviceplugin.audit.seen import Problem, SeenShare
from deviceplugin.hardware.driver import Driver
from deviceplugin.host import kernel_process
from deviceplugin.link.arbiter import Arbiter
from deviceplugin.state.offer import Offer
from gpushare import contract
from gpushare.gpunode import Condition, GpuNode
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

SECONDS: Final = 2.0  # between two looks
# For so long after a start programs may still go by the time that they have without an arbiter. Later on, whoever does
# has left an arbiter that is there.
ALONE_SECONDS: Final = leases.SETTLING_NS / 1e9
_LOGGED: Final = {
    contract.EVENT_UNLIMITED: "A process runs without limits",
    contract.EVENT_BEYOND: "A share runs beyond its limit",
}
MAX_EVENTS: Final = 20  # of one look: who starts processes as fast as can be is not to write as many Events


class Auditor:
    """Audits until cancelled. `audit` is the last one, `conditions` what the GPUNode is to say of it.

    gpus: with their modes; node: the GPUNode as last seen, None while that is unknown; pods: those of the node.
    warn: an Event with this reason and note, about the GPUNode and, by namespace and name, a pod.
    changed: there is something new to say of the GPUNode.
    ends: whether processes of share containers that got around their limits are killed.
    """

    def __init__(
        self,
        driver: Driver,
        arbiter: Arbiter,
        contexts: ContextSizes,
        *,
        gpus: Offer,
        node: Callable[[], GpuNode | None],
        pods: Callable[[], Iterable[PodJson]],
        warn: Callable[[str, str, tuple[str, str] | None], None],
        changed: Callable[[], None],
        node_name: str,
        identify: Identify,
        ends: bool = False,
        proc: Path = kernel_process.PROC,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._arbiter = arbiter
        self._contexts = contexts
        self._gpus = gpus
        self._node = node
        self._pods = pods
        self._report = warn
        self._changed = changed
        self._node_name = node_name
        self._identify = identify
        self._ends = ends
        self._proc = proc
        self._wall_clock = wall_clock
        self._clock = clock
        self._looking = process_listing.Looking(
            driver.nvml, identify=identify, lost_ticks=lambda: arbiter.reported.lost_ticks, proc=proc
        )
        self._overheads = overhead.Overheads()
        self._excess = excess.Excess()
        self._usage = excess.DriverUsage()
        self._told: frozenset[Hashable] = frozenset()
        self._events_left = 0
        self._checked_at: float | None = None
        self._compared_from: float | None = None
        self._looks = 0
        self.audit = NodeAudit()
        self.conditions: tuple[Condition, ...] = ()

    async def run(self) -> None:
        """Audit every two seconds, until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(SECONDS)

    async def step(self) -> None:
        """Look once, and do what follows from it. A look that fails ends nothing, and is told."""
        try:
            await self._step()
        except Exception as error:
            logger.exception("The audit failed")
            self._publish(dataclasses.replace(self.audit, problems=(Problem(f"the audit failed: {error}"),)))
        self._looks += 1
        if self.has_measured:
            self._arbiter.publish_measured()

    @property
    def used(self) -> Mapping[excess.Place, float]:
        """The part of a GPU's time that each share used lately, by the driver; shares that it does not measure lack."""
        return self._usage.recent

    @property
    def has_measured(self) -> bool:
        """Whether what processes hold beyond their charges is known, as far as the driver tells."""
        return self._looks >= overhead.LOOKS_TO_MEASURE

    async def _step(self) -> None:
        gpus = self._gpus.gpus
        await self._arbiter.report()
        groups, unreachable = self._arbiter.shares.all(), self._arbiter.reported.unreachable
        measured = await self._driver.ask(self._looking.measure, gpus, groups)
        look = await asyncio.to_thread(self._looking.describe, measured, gpus, groups, unreachable)
        self._charge(look)
        self._arbiter.publish_activity(look.works)
        now = self._clock()  # the arbiter's books are of this moment, however long we stand still before we have them
        await self._arbiter.report(turns=True)  # by then the pages say what is charged
        shares = tuple(self._now(look.seen.shares))
        self._compare(now, look, shares)
        seen = dataclasses.replace(look.seen, shares=shares, beyond=self._excess.beyond)
        node, pods = self._node(), tuple(self._pods())
        suspects = self.audit.suspects
        self._publish(await asyncio.to_thread(process_limits.judge, seen, pods=pods, node=node, suspects=suspects))
        await self._arbiter.report()
        self._tell()

    def _now(self, shares: Iterable[SeenShare]) -> Iterator[SeenShare]:
        """The shares with what their pages say after the look; those that have ended meanwhile are left out."""
        there = {share.tenant.key: share for share in self._arbiter.shares.all()}
        for share in shares:
            if share.tenant.key in there:
                yield dataclasses.replace(share, enforced=there[share.tenant.key].limits.read())

    def _publish(self, audit: NodeAudit) -> None:
        self.audit = audit
        self._checked_at = self._wall_clock()
        conditions = (audit_document.condition(audit),)
        if conditions != self.conditions:
            self.conditions = conditions
            self._changed()

    def document(self) -> dict[str, Any] | None:
        """The last audit as JSON; None before the first."""
        if self._checked_at is None:
            return None
        return audit_document.to_json(self.audit, node_name=self._node_name, checked_at=self._checked_at)

    def _charge(self, look: process_listing.Look) -> None:
        """Charge to each share what its processes hold beyond their charges, and learn from it what a context takes."""
        self._overheads.look(look.readings, look.silent)
        kinds = {gpu.uuid: self._contexts.kind(gpu) for gpu in look.seen.gpus}
        learned = collections.defaultdict[str, list[int]](list)
        for (uuid, _), context_bytes in self._overheads.learned.items():
            if uuid in kinds:  # and no MIG device, whose contexts are smaller
                learned[kinds[uuid]].append(context_bytes)
        self._contexts.learn({kind: tuple(sizes) for kind, sizes in learned.items()})
        for share in self._arbiter.shares.all():
            uuids = [grant.uuid for grant in share.tenant.grants]
            self._arbiter.publish_overheads(
                share,
                {
                    slot: [self._overheads.of((uuid, (member.pid, member.start_ticks))) for uuid in uuids]
                    for slot, member in share.members.items()
                },
            )
            self._arbiter.publish_context_bytes(uuids)

    def _compare(self, now: float, look: process_listing.Look, shares: Iterable[SeenShare]) -> None:
        """What the driver says that shares used, with what they were let have."""
        self._usage.look(now, look.used)
        held = {(lease.gpu_uuid, lease.tenant.key): lease.had_seconds for lease in self._arbiter.shares.lease_usage()}
        self._compared_from = now if self._compared_from is None else self._compared_from
        turns = {
            (grant.uuid, share.tenant.key): record.turn_permille / timetable.PERIOD
            for share in (shares if now < self._compared_from + ALONE_SECONDS else ())
            for grant, record in zip(share.tenant.grants, share.enforced, strict=True)
        }
        self._excess.look(now, used=look.used, held=held, turns=turns)

    def _tell(self) -> None:
        """Events, once for each process and share; and the end of processes that are not to run."""
        troubles = process_limits.troubles(self.audit)
        certain = {process.key for process in process_limits.to_be_ended(self.audit)} if self._ends else set()
        self._events_left = MAX_EVENTS
        registered = {
            (member.pid, member.start_ticks)
            for share in self._arbiter.shares.all()
            for member in share.members.values()
        }
        for key, judged in troubles.items():
            if judged.process.who in registered:
                continue  # since we looked
            if key in certain:
                self._end(judged)
            elif key not in self._told:
                self._event(judged, audit_document.sentence(self.audit, judged))
        beyond = {
            (share.namespace, share.pod, share.containers, share.gpu): share
            for share in self.audit.shares
            if share.beyond is not None
        }
        for key, share in beyond.items():
            if key not in self._told:
                note = audit_document.beyond(self.audit, share)
                self._warn(contract.EVENT_BEYOND, note, (share.namespace, share.pod), {"gpu": share.gpu})
        self._told = frozenset((*troubles, *beyond))

    def _end(self, judged: AuditedProcess) -> None:
        problem = ending.end(judged.process, identify=self._identify, proc=self._proc)
        what = f"it could not be ended: {problem}" if problem else "it was ended, as --end-unlimited asks for"
        if not problem or judged.key not in self._told:
            self._event(judged, f"{audit_document.sentence(self.audit, judged)}; {what}")

    def _event(self, judged: AuditedProcess, note: str) -> None:
        who = {"gpu": judged.process.gpu, "pid": judged.process.pid, "state": str(judged.state)}
        self._warn(contract.EVENT_UNLIMITED, note, (judged.namespace, judged.pod) if judged.pod else None, who)

    def _warn(self, reason: str, note: str, of: tuple[str, str] | None, extra: Mapping[str, object]) -> None:
        if self._events_left == 0:
            return
        self._events_left -= 1
        pod = {"pod": {"namespace": of[0], "name": of[1]}} if of is not None else {}
        logger.warning(_LOGGED[reason], extra={**extra, **pod, "note": note})
        self._report(reason, note, of)
