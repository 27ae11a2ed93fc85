"""The arbiter's end of the channel to the agent, by which it finds the share of a container.

The agent may be busy with the cluster for seconds. No lease waits for it. Only a process that has just connected waits,
until the agent has sent the container's share.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Final

from deviceplugin.arbiter import messages
from deviceplugin.arbiter.client_connection import ShareLookup
from deviceplugin.arbiter.messages import Channel
from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.arbiter.share_ledgers import ShareLedgers, ShareUse
from deviceplugin.arbiter.share_resizing import ShareResizer
from deviceplugin.arbiter.socket_server import Server
from deviceplugin.arbiter.tenant import Tenant, find_allocation
from deviceplugin.host.kernel_process import Container
from gpushare import ledger, quantity
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode, Resize
from gpushare.refusal import Refusal

TURNS_A_MESSAGE: Final = 64


class AgentChannel:
    """The agent, as the arbiter sees it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._entries: dict[str, Allocation] = {}
        self._resizes: tuple[Resize, ...] | None = None
        self._contexts: dict[str, int] = {}
        self._gpu_bytes: dict[str, int] = {}
        self._asked: dict[Container, asyncio.Future[Tenant | Refusal]] = {}
        # by share key: the ledger, and its count of changes then
        self._reported: dict[str, tuple[ShareLedger, int]] = {}
        self._announced_change = False
        self.measuring: dict[int, asyncio.Future[int | None]] = {}  # open questions about unclaimed memory
        self._numbers = itertools.count(1)
        self._askers: set[tuple[int, int]] = set()  # processes with an open question
        self._refused: set[Container] = set()  # containers announced since the last report
        self.has_measured = False  # whether the agent has measured what processes hold uncharged

    def serve(self, ledgers: ShareLedgers, server: Server, resizing: ShareResizer) -> None:
        """Set the parts that handle the agent's messages; call it before the channel listens."""
        self._ledgers = ledgers
        self._server = server
        self._resizing = resizing
        server.on_library_refused = self.library_refused

    @property
    def node(self) -> GpuNode | None:
        """The GPUNode, with allocations and resizes only; None before the agent has sent it."""
        if self._resizes is None:
            return None
        return GpuNode("", allocations=tuple(self._entries.values()), resizes=self._resizes)

    async def tenant(self, container: Container) -> Tenant | Refusal:
        """Ask the agent for the container's share. All processes of the container wait for one answer."""
        asked = self._asked.get(container)
        if asked is None:
            asked = self._asked[container] = asyncio.get_running_loop().create_future()
            self._channel.send(messages.Identify(container))
        return await asyncio.shield(asked)

    def context_bytes(self, gpu_uuid: str) -> int:
        return self._contexts.get(gpu_uuid, 0)

    def gpu_bytes(self, gpu_uuid: str) -> int:
        return self._gpu_bytes.get(gpu_uuid, 0)

    async def unclaimed_bytes(self, share: ShareLedger, slot: int, gpu: int) -> int | None:
        """Return how much of a GPU's memory belongs to no other process than the one in this slot; None if unknown."""
        number, member = next(self._numbers), share.members[slot]
        who = (member.pid, member.start_ticks)
        if who in self._askers:  # a library asks one question at a time, and repeats it if it gets no answer
            return None
        self._askers.add(who)
        asked: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.measuring[number] = asked
        try:
            self._channel.send(messages.Measure(number, share.tenant.key, *who, gpu))
            return await asked
        finally:
            self._askers.discard(who)
            del self.measuring[number]

    def changed(self) -> None:
        """Announce that resizes may have changed; only once until the agent applies allocations again."""
        if not self._announced_change:
            self._announced_change = True
            self._channel.send(messages.Changed())

    def library_refused(self, container: Container, sentence: str) -> None:
        """Report a library that speaks no supported protocol version, once per container between two reports."""
        if container not in self._refused:
            self._refused.add(container)
            self._channel.send(messages.LibraryRefused(container, sentence))

    def handle(self, message: messages.Message) -> None:
        """Handle a message of the agent. Raises ValueError for messages that only an arbiter sends."""
        match message:
            case messages.HasAllocation(allocation):
                self._entries[allocation.id] = allocation
            case messages.AllocationGone(identity):
                self._entries.pop(identity, None)
            case messages.ApplyAllocations(resizes):
                self._announced_change = False
                self._resizes = resizes
                node = GpuNode("", allocations=tuple(self._entries.values()), resizes=resizes)
                self._channel.send(messages.ResizesApplied(self._resizing.apply(node)))
            case messages.Identified(container, tenant, refusal, gpus):
                self._gpu_bytes |= dict(gpus)
                asked = self._asked.pop(container, None)
                if asked is not None and not asked.done():
                    asked.set_result(tenant or Refusal(refusal))
            case messages.ContextCharges(contexts):
                self._contexts |= dict(contexts)
                for share in self._ledgers.all():
                    self._ledgers.expect_contexts(share)
            case messages.ShareOverheads(key, processes):
                held = {(process.pid, process.start_ticks): process.held_bytes for process in processes}
                for share in (share for share in self._ledgers.all() if share.tenant.key == key):
                    slots = {slot: (member.pid, member.start_ticks) for slot, member in share.members.items()}
                    share.set_overheads({slot: held[who] for slot, who in slots.items() if who in held})
            case messages.Measured():
                self.has_measured = True
            case messages.ShareActivities(activities):
                self._server.leases.observe({(gpu, share_key): active for gpu, share_key, active in activities})
            case messages.UnclaimedMemory(number, memory_bytes):
                waiting = self.measuring.get(number)  # None if the client has disconnected
                if waiting is not None and not waiting.done():
                    waiting.set_result(memory_bytes)
            case messages.Report(turns):
                self._report(turns=turns)
            case _:
                raise ValueError(f"unexpected message from the agent: {message}")

    def _report(self, *, turns: bool) -> None:
        self._refused.clear()
        ledgers = {share.tenant.key: share for share in self._ledgers.all()}
        for key in self._reported.keys() - ledgers.keys():
            del self._reported[key]
            self._channel.send(messages.ShareGone(key))
        for key, share in ledgers.items():
            known, changes = self._reported.get(key, (None, -1))
            if known is not share or changes != share.changes:
                self._reported[key] = share, share.changes
                pages = () if known is share else (share.limits.descriptor, share.ledger.descriptor)
                members = tuple(
                    messages.LedgerMember(slot, process.pid, process.start_ticks)
                    for slot, process in share.members.items()
                )
                self._channel.send(messages.RunningShareState(share.tenant, members), pages)
        if turns:
            had = tuple(
                messages.LeaseReport(held.tenant.key, *(getattr(held, field) for field in messages.USAGE_FIELDS))
                for held in self._server.leases.usage()
            )
            for first in range(0, max(1, len(had)), TURNS_A_MESSAGE):
                self._channel.send(messages.LeaseReports(had[first : first + TURNS_A_MESSAGE]))
        unreachable = (holder for holders in self._ledgers.unreachable.values() for holder in holders)
        self._channel.send(
            messages.Reported(
                connections=self._server.connections,
                turned_away=self._server.turned_away,
                versions=tuple(self._server.versions.items()),
                lost_ticks=self._ledgers.lost_ticks,
                unreachable=tuple((process.pid, process.start_ticks) for process in unreachable),
            )
        )


WAIT_SECONDS: Final = 15.0  # for memory of departed shares: the library waits twenty seconds for an answer
POLL_SECONDS: Final = 0.1


@dataclasses.dataclass(frozen=True)
class DepartedShares:
    """A share lookup that answers once the share's memory is free of other shares, for a limited time.

    `kubectl delete --force` removes a pod, and so its share, at once. Its processes run until the kubelet has killed
    them, so the next share on that GPU would find less memory than it was promised. The same happens when a GPUNode is
    restored to a state before memory was lent. Memory of processes without the library is unknown, and not waited for.

    node: returns the GPUNode, or None if unknown. gpu_bytes: returns a GPU's total memory by UUID, or 0 if unknown.
    """

    lookup: ShareLookup
    ledgers: ShareLedgers
    _: dataclasses.KW_ONLY
    node: Callable[[], GpuNode | None]
    gpu_bytes: Callable[[str], int]
    wait_seconds: float = WAIT_SECONDS

    async def tenant(self, container: Container) -> Tenant | Refusal:
        """Return the container's share, or the reason why it has none or its memory is still in use."""
        tenant = await self.lookup.tenant(container)
        if isinstance(tenant, Refusal):
            return tenant
        deadline = asyncio.get_running_loop().time() + self.wait_seconds
        while (node := self.node()) is not None:
            problem = departed_holders(tenant, self.ledgers.uses(), node, self.gpu_bytes)
            if problem is None:
                break
            if asyncio.get_running_loop().time() > deadline:
                return Refusal(problem) if problem else tenant
            await asyncio.sleep(POLL_SECONDS)
        return tenant


def departed_holders(
    tenant: Tenant, uses: Iterable[ShareUse], node: GpuNode, gpu_bytes: Callable[[str], int]
) -> str | None:
    """Name, in a sentence, the deleted pods which hold the share's memory; None if none do, "" if `node` may be old."""
    is_old = find_allocation(tenant, node) is None
    departed = [use for use in uses if use.tenant.key != tenant.key and find_allocation(use.tenant, node) is None]
    on_gpus, own_bytes = node.lent_by_gpu(), node.lent().get((tenant.allocation, tenant.share), 0)
    if not departed and not is_old and not on_gpus:
        return None
    for grant in tenant.grants:
        given = sum(
            ledger.held(entry, grant.uuid)[1] for entry in node.allocations if not entry.is_backfill_reservation
        )
        given += (lent_bytes := on_gpus.get(grant.uuid, 0))
        held = {f"{use.tenant.namespace}/{use.tenant.pod}": _held(use, grant.uuid) for use in departed}
        total, mine = gpu_bytes(grant.uuid), grant.memory_bytes if is_old else 0
        if total and given + mine + sum(held.values()) > total:
            names = ", ".join(name for name, bytes_held in held.items() if bytes_held)
            if not names and lent_bytes > own_bytes and not is_old:
                lent = quantity.format_bytes(lent_bytes - own_bytes)
                return (
                    f"other shares still hold {lent} of {grant.uuid} that they were lent, so this share's memory is "
                    "not free yet: restart the container once they use less"
                )
            return names and (
                f"processes of {names}, which was deleted, still hold {quantity.format_bytes(sum(held.values()))} of "
                f"{grant.uuid}, so this share's memory is not free yet: restart the container once they have ended"
            )
    return None


def _held(use: ShareUse, uuid: str) -> int:
    amounts = zip(use.tenant.grants, use.used_bytes, use.overhead_bytes, strict=True)
    return sum(used + overhead for grant, used, overhead in amounts if grant.uuid == uuid)
