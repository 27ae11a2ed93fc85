"""The arbiter's end of the channel to the agent.

The agent may be busy with the cluster for seconds. No lease waits for it. Only a process that has just connected waits,
until the agent has sent the container's share.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from deviceplugin.arbiter import messages
from deviceplugin.arbiter.messages import Channel
from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.arbiter.share_ledgers import ShareLedgers
from deviceplugin.arbiter.share_resizing import ShareResizer
from deviceplugin.arbiter.socket_server import Server
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.host.kernel_process import Container
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
