"""The agent's end of the channel to the arbiter, which starts with the agent and ends with it, whichever ends first.

The agent sends allocations and measurements, answers questions, and receives reports. An agent whose arbiter has ended
ends too. The kubelet restarts it, with backoff, and the next two processes take over the state. So there is one way of
recovery for all failures, and upgrades use it as well.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from deviceplugin.arbiter import messages, socket_server
from deviceplugin.arbiter.messages import Channel
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.host.kernel_process import Container
from deviceplugin.link.node_shares import Lookup, RunningShare, Shares
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode, Resize
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

END_SECONDS: Final = 5.0
REPORT_SECONDS: Final = 1.0  # between two reports
MAX_SILENT: Final = 30  # intervals without an answer before the agent ends
PROGRAM: Final = ("-m", "deviceplugin.arbiter")
FAILED: Final = Refusal("the node's agent failed to answer: its log says why")
Who = tuple[int, int]  # a process: pid and start ticks
_Answer = TypeVar("_Answer")


class ArbiterError(Exception):
    """The arbiter's process has failed; the message says how."""


class ArbiterProcess:
    """A running arbiter, and the `channel` to it."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self._process, self.channel = process, channel

    @property
    def pid(self) -> int:
        return self._process.pid

    async def watched(self) -> None:
        """Wait for the process, which should not end, and raise ArbiterError."""
        code = await self._process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise ArbiterError(f"the arbiter's process has ended {how}: the agent exits too, and both are restarted")


@contextlib.asynccontextmanager
async def running(
    path: Path,
    *,
    ledgers: Path,
    proc: Path,
    log_level: str,
    registered: int | None = None,
    program: Sequence[str] = PROGRAM,
) -> AsyncIterator[ArbiterProcess]:
    """Run an arbiter with its socket at `path`. The other arguments are those of `python -m deviceplugin.arbiter`.

    A new interpreter rather than a fork: the agent has threads, and many modules that the arbiter does not need.
    """
    socket_server.raise_file_limit()  # the agent has two open files per share
    ours, theirs = socket.socketpair()
    maps = [registered] if registered is not None else []
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *program),
            *(f"--agent={theirs.fileno()}", f"--socket={path}", f"--ledgers={ledgers}"),
            *(f"--proc-root={proc}", f"--log-level={log_level}"),
            *(f"--registered={descriptor}" for descriptor in maps),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *maps],
        )
    started = ArbiterProcess(process, Channel(ours))
    logger.info("Started the arbiter", extra={"pid": started.pid})
    try:
        yield started
    finally:
        started.channel.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            logger.error("The arbiter's process does not end in time: killing it", extra={"pid": started.pid})  # noqa: TRY400
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@dataclasses.dataclass(eq=False)
class Arbiter:
    """The arbiter, as the agent sees it.

    node: returns the GPUNode as last seen, with MIG devices as `Lookup.as_devices` shows them. tell: called when the
    GPUNode's status needs an update. context_bytes, unclaimed_bytes: as in `ShareLedgers`, for the given process.
    shares, reported: from the last report. refused: called with the container and the reason when a library speaks no
    supported protocol version. prove: sets the driver's limits of a container before its processes are welcome; returns
    why they are not.
    """

    channel: Channel
    _: dataclasses.KW_ONLY
    lookup: Lookup
    node: Callable[[], GpuNode | None]
    tell: Callable[[], None]
    context_bytes: Callable[[str], int]
    unclaimed_bytes: Callable[[RunningShare, Who, int], Awaitable[int | None]] | None = None
    refused: Callable[[Container, str], None] | None = None
    prove: Callable[[Container, Tenant], Awaitable[Refusal | None]] | None = None
    shares: Shares = dataclasses.field(default_factory=Shares)

    def __post_init__(self) -> None:
        self._entries: dict[str, Allocation] = {}  # as sent to the arbiter
        self._contexts: dict[str, int] = {}
        self._measured = False
        self._applying: collections.deque[asyncio.Future[tuple[Resize, ...]]] = collections.deque()
        self._reporting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._turns: list[messages.LeaseReport] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._silent = 0
        self._broken: Exception | None = None
        self.listening = asyncio.Event()
        self.reported = messages.Reported(0, 0, (), 0, ())
        self.channel.listen(self._on_message, lambda: None)  # `ArbiterProcess.watched` notices the end

    @property
    def problem(self) -> str | None:
        """Why the arbiter cannot be relied on, as a sentence; None if it can."""
        if not self.listening.is_set():
            return "the arbiter is not ready yet"
        return f"the arbiter has not answered for {self._silent} seconds" if self._silent > 1 else None

    async def run(self) -> None:
        """Request reports for ever. Raises ArbiterError if the arbiter stops answering."""
        while True:
            asked = asyncio.ensure_future(self.report(turns=True))
            # Count turns of our own loop: if the agent itself stood still, the arbiter is not to blame.
            while not (await asyncio.wait({asked}, timeout=REPORT_SECONDS))[0]:
                if self._broken is not None:
                    asked.cancel()
                    raise ArbiterError("the agent failed to handle a message of the arbiter") from self._broken
                self._silent += 1
                if self._silent == MAX_SILENT:
                    asked.cancel()
                    raise ArbiterError(f"the arbiter has not answered for {MAX_SILENT} seconds: the agent exits")
            self._silent = 0
            await asyncio.sleep(REPORT_SECONDS)

    async def report(self, *, turns: bool = False) -> None:
        """Update `shares` and `reported` to a state after this call."""
        done = asyncio.get_running_loop().create_future()
        self._reporting.append(done)
        self.channel.send(messages.Report(turns))
        await done

    async def has_processes(self, uuid: str) -> bool:
        """Whether a process of a share is registered on this GPU now."""
        await self.report()
        return any(grant.uuid == uuid for share in self.shares.all() for grant in share.tenant.grants)

    def refresh(self) -> None:
        """Send the current GPUNode, and call `tell` if its status turns out to be outdated."""
        node = self.node()
        if node is None:
            return

        def compare(done: asyncio.Future[tuple[Resize, ...]]) -> None:
            if not done.cancelled() and done.result() != node.resizes:
                self.tell()

        self.apply(node).add_done_callback(compare)

    def apply(self, node: GpuNode) -> asyncio.Future[tuple[Resize, ...]]:
        """Have this GPUNode applied to all shares. The result is the resizes that its status should have."""
        there = {entry.id: entry for entry in self.lookup.as_devices(node).allocations}
        closed = {gpu.uuid for gpu in node.gpus if gpu.unowned or not gpu.healthy}
        for identity, entry in there.items():
            # Invalid allocations may hold the memory that is free otherwise, so nothing is lent.
            if node.unread or closed.intersection(entry.gpu_uuids):
                shares = tuple(dataclasses.replace(share, memory_limit_bytes=None) for share in entry.shares)
                there[identity] = dataclasses.replace(entry, shares=shares)
        for gone in self._entries.keys() - there.keys():
            self.channel.send(messages.AllocationGone(gone))
        for identity, entry in there.items():
            if self._entries.get(identity) != entry:
                self.channel.send(messages.HasAllocation(entry))
        self._entries = there
        done: asyncio.Future[tuple[Resize, ...]] = asyncio.get_running_loop().create_future()
        self._applying.append(done)
        self.channel.send(messages.ApplyAllocations(node.resizes))
        return done

    def publish_context_bytes(self, gpu_uuids: Iterable[str]) -> None:
        sizes = {uuid: self.context_bytes(uuid) for uuid in gpu_uuids}
        new = {uuid: size for uuid, size in sizes.items() if self._contexts.get(uuid, 0) != size}
        if new:
            self._contexts |= new
            self.channel.send(messages.ContextCharges(tuple(new.items())))

    def publish_overheads(self, share: RunningShare, held: Mapping[int, Sequence[int]]) -> None:
        """Send what a share's processes hold beyond their charges, by slot and GPU."""
        overheads = tuple(
            messages.Overhead(member.pid, member.start_ticks, tuple(held[slot]))
            for slot, member in share.members.items()
            if slot in held
        )
        if overheads != share.overheads:
            share.overheads = overheads
            self.channel.send(messages.ShareOverheads(share.tenant.key, overheads))

    def publish_measured(self) -> None:
        if not self._measured:
            self._measured = True
            self.channel.send(messages.Measured())

    def publish_activity(self, works: Mapping[tuple[str, str], bool]) -> None:
        """Send whether the driver has recently run work, by the GPU's UUID and the share's key."""
        if works:
            self.channel.send(messages.ShareActivities(tuple((*place, runs) for place, runs in works.items())))

    def close(self) -> None:
        for task in self._answering:
            task.cancel()
        self.shares.close()

    def _on_message(self, message: messages.Message, descriptors: Sequence[int]) -> None:
        # Restart rather than go on after half a message: later answers would be matched to the wrong questions.
        if self._broken is None:
            try:
                self._handle(message, descriptors)
            except Exception as error:
                logger.exception("The agent failed to handle a message of the arbiter")
                self._broken = error

    def _handle(self, message: messages.Message, descriptors: Sequence[int]) -> None:
        match message:
            case messages.ArbiterReady():
                self.listening.set()
            case messages.Changed():
                self.tell()
            case messages.Identify(container):
                self._answer(self._identify(container))
            case messages.Measure():
                self._answer(self._measure(message))
            case messages.LibraryRefused(container, sentence):
                if self.refused is not None:
                    self.refused(container, sentence)
            case messages.ResizesApplied(resizes):
                _set(self._applying.popleft(), resizes)
            case messages.RunningShareState():
                self.shares.update(message, descriptors)
            case messages.ShareGone(key):
                self.shares.remove(key)
            case messages.LeaseReports(turns):
                self._turns = [*(self._turns or ()), *turns]
            case messages.Reported():
                self.reported = message
                if self._turns is not None:
                    self.shares.lease_reports = tuple(self._turns)
                    self._turns = None
                _set(self._reporting.popleft(), None)
            case _:
                raise ValueError(f"unexpected message from the arbiter: {message}")

    def _answer(self, answering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(answering)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _measure(self, asked: messages.Measure) -> None:
        unclaimed_bytes = None
        try:
            await self.report()  # the answer needs the current members
            share = self.shares.get(asked.share)
            if share is not None and self.unclaimed_bytes is not None:
                unclaimed_bytes = await self.unclaimed_bytes(share, (asked.pid, asked.start_ticks), asked.gpu)
        except Exception:
            logger.exception("Could not measure the unclaimed memory of a GPU", extra={"share": asked.share})
        self.channel.send(messages.UnclaimedMemory(asked.number, unclaimed_bytes))

    async def _identify(self, container: Container) -> None:
        try:
            tenant = await self.lookup.tenant(container)
            if isinstance(tenant, Tenant) and self.prove is not None:
                tenant = await self.prove(container, tenant) or tenant
        except Exception:
            logger.exception("Could not find the share of a container", extra={"pod_uid": container.pod_uid})
            tenant = FAILED
        if isinstance(tenant, Tenant):
            self.publish_context_bytes(grant.uuid for grant in tenant.grants)
            node = self.node()
            gpus = node.gpu_by_uuid() if node is not None else {}
            known = (gpus[grant.uuid] for grant in tenant.grants if grant.uuid in gpus)
            sizes = tuple((gpu.uuid, gpu.memory_bytes) for gpu in known)
            self.channel.send(messages.Identified(container, tenant, gpus=sizes))
        else:
            self.channel.send(messages.Identified(container, None, str(tenant)))


def _set(asked: asyncio.Future[_Answer], answer: _Answer) -> None:
    if not asked.done():
        asked.set_result(answer)
