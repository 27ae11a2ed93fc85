"""The MPS daemons of GPUs whose shares have the isolation mps: from a GPU's first such share to its last.

The ledger decides, so an agent that restarts finds the same daemons wanted. It takes running ones over, because the end
of a daemon ends all its clients. A daemon that may have clients is not stopped, even if the ledger has no share: a
deleted GPUNode comes back without its allocations.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deviceplugin.host import kernel_process
from deviceplugin.mps import sm_partitions, steps
from deviceplugin.mps.daemons import Daemons, IsUsed
from deviceplugin.mps.steps import DaemonFiles
from deviceplugin.mps.supervisor import ControlError
from gpushare.allocation import Isolation
from gpushare.gpunode import GpuNode
from gpushare.modes.hardware_gpu import HardwareGpu, has_new_mps
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

SECONDS: Final = 2.0  # between two comparisons with the ledger
ANSWER_SECONDS: Final = 3.0  # for one question to a daemon, so that a hung one delays no audit
MAX_SERVER_FAILURES: Final = 3  # within WINDOW_SECONDS; then the GPU gets no new clients
WINDOW_SECONDS: Final = 60.0
_NO_ANSWER: Final = (ControlError, OSError, ValueError)  # a TimeoutError is an OSError
STARTING_SECONDS: Final = 60.0  # in which a container whose daemon is ready starts, and the ledger's copy has its share


@dataclasses.dataclass(frozen=True, slots=True)
class ClientFiles:
    """A daemon's files that a container mounts. partition: the directory with the name of its SM partition, if any."""

    daemon: DaemonFiles
    partition: Path | None = None


class MpsShares:
    """The daemons for shares. Only those of GPUs in mode fractional are touched.

    node: the GPUNode as last seen; None while unknown, or if there is none. fractional: the UUIDs of the GPUs in that
    mode now. changed: called when the result of `problems` has changed.
    """

    def __init__(
        self,
        daemons: Daemons,
        *,
        node: Callable[[], GpuNode | None],
        fractional: Callable[[], frozenset[str]],
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._daemons = daemons
        self._node = node
        self._fractional = fractional
        self._changed = changed
        self._clock = clock
        self._problems: dict[str, str] = {}
        self._failures: dict[str, list[tuple[float, int]]] = {}  # by UUID: when, and how many servers had failed
        self._asked: dict[str, float] = {}  # by UUID: when a container last asked for the daemon
        self._too_many: set[tuple[str, int]] = set()  # UUIDs, and numbers of SM partitions that exceed the GPU's chunks

    async def run(self) -> None:
        while True:
            await self.step()
            await asyncio.sleep(SECONDS)

    async def step(self) -> None:
        """Start the daemons that shares need, and stop the others."""
        wanted = self._wanted()
        if wanted is None:
            return
        for uuid in wanted:
            self._count_failures(uuid)
            if not self._daemons.knows(uuid):
                await self._start(uuid)
        for uuid in self._fractional() - wanted:
            self._failures.pop(uuid, None)
            try:
                await self._daemons.stop(uuid, for_shares=True, is_used=self._is_used)
            except (ControlError, OSError) as error:
                logger.warning("An MPS daemon cannot be stopped", extra={"daemon": uuid, "err": str(error)})
        problems = self.problems()
        if problems != self._problems:
            self._problems = problems
            self._changed()

    async def ready(self, uuid: str, share: str, *, has_processes: IsUsed | None = None) -> ClientFiles | Refusal:
        """Return the files of a GPU's daemon, started if it was not, or why it takes no client now.

        share: the key of the share whose container starts, for its SM partition. has_processes: whether a process of a
        share is registered on the GPU; None if that cannot be known.
        """
        self._asked[uuid] = self._clock()
        if not self._daemons.knows(uuid):
            await self._start(uuid)
        elif has_processes is not None:
            await self._end_idle_servers(uuid, has_processes)
        problem = self.problem(uuid)
        taken: Path | Refusal | None = None
        if not problem and self._daemons.partitions(uuid):
            taken = await self._take_partition(uuid, share)
            problem = taken.reason if isinstance(taken, Refusal) else ""
        if isinstance(taken, Refusal) or problem:
            return Refusal(f"the MPS daemon of {uuid} takes no client now: {problem}")
        return ClientFiles(self.files(uuid), taken)

    async def _end_idle_servers(self, uuid: str, has_processes: IsUsed) -> None:
        """Shut down a server without clients, so that the container that starts gets a new one.

        Up to CUDA 13.5, a client that was killed while its kernels ran leaves a server on which no kernel ends. A
        client is listed only once it has a context, but each process registers before it starts CUDA.
        """
        with contextlib.suppress(*_NO_ANSWER):
            async with asyncio.timeout(ANSWER_SECONDS):
                for server, clients in (await self._clients_by_server(uuid)).items():
                    if not clients and not await has_processes(uuid):
                        # Without -f, a client that connects at this moment keeps the server until it ends.
                        await self._daemons.send(uuid, f"shutdown_server {server}")
                        logger.info("Shut down an MPS server without clients", extra={"daemon": uuid, "pid": server})

    async def _take_partition(self, uuid: str, share: str) -> Path | Refusal:
        """Return the directory that has the name of the share's SM partition, or why it gets none now."""
        async with self._daemons.partitioning[uuid]:
            if problem := self.problem(uuid):  # it has ended meanwhile, and the next one has other partitions
                return Refusal(problem)
            try:
                _, there = sm_partitions.listed(await self._daemons.send(uuid, "lspart"), uuid)
            except ControlError as error:
                return Refusal(str(error))
            node = self._node()
            if node is None:
                return Refusal("the GPUNode is not known yet")
            alive = sm_partitions.keys(node.allocations)
            return await asyncio.to_thread(sm_partitions.take, self.files(uuid).shares, share, there, alive=alive)

    def partitions(self, uuid: str, configured: int) -> int:
        """Return how many SM partitions a GPU has: a new number applies once its last share and daemon have gone."""
        running, node = self._daemons.partitions(uuid), self._node()
        if running is not None:
            return running
        gpu = node.gpu_by_uuid().get(uuid) if node is not None and uuid in _gpus_with_clients(node) else None
        return configured if gpu is None else gpu.sm_partitions

    def files(self, uuid: str) -> DaemonFiles:
        return self._daemons.files(uuid)

    def problem(self, uuid: str) -> str:
        """Return why a GPU gets no new client now, as a clause; "" if it does, or if it has no daemon yet."""
        if not self._daemons.knows(uuid):
            return ""
        counted = self._failures.get(uuid, [])
        failed = counted[-1][1] - counted[0][1] if counted else 0
        if failed >= MAX_SERVER_FAILURES:
            return f"its servers failed {failed} times within {WINDOW_SECONDS:.0f} s, with all their clients"
        return self._daemons.problem(uuid)

    def problems(self) -> dict[str, str]:
        """Return the problems of the GPUs that have clients, by UUID."""
        return {uuid: problem for uuid in sorted(self._wanted() or ()) if (problem := self.problem(uuid))}

    def can_share(self, gpu: HardwareGpu, compute_capability: tuple[int, int]) -> bool:
        """Whether shares with this isolation can be on this GPU, as far as GPU and keeper are concerned."""
        # A daemon that the agent starts without a keeper ends with it, and all clients with that.
        is_kept = self._daemons.program.is_socket()
        return is_kept and has_new_mps(compute_capability) and not gpu.mig_enabled and not self.problem(gpu.uuid)

    def can_cut(self, uuid: str, count: int) -> bool:
        """Whether no daemon has found the GPU to have fewer chunks than so many SM partitions."""
        return (uuid, count) not in self._too_many

    async def clients(self, uuid: str) -> dict[int, frozenset[int]] | None:
        """Return the PIDs of a daemon's clients, by the PIDs of its servers; None if it does not say."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._clients_by_server(uuid)
        except _NO_ANSWER:
            return None

    async def terminate(self, uuid: str, process: tuple[int, int]) -> None:
        """End a client's work before its process is killed: a kill during work can hang the GPU's other clients.

        No-op if it is not a client, if its PID belongs to another process by now, or if the daemon does not answer in
        time. process: its PID and its start in kernel ticks.
        """
        if not self._daemons.knows(uuid):
            return
        pid, _ = process
        with contextlib.suppress(*_NO_ANSWER):
            async with asyncio.timeout(ANSWER_SECONDS):
                for server, clients in (await self._clients_by_server(uuid)).items():
                    if pid in clients and kernel_process.with_start(pid) == process:
                        await self._daemons.send(uuid, f"terminate_client {server} {pid}")
                        logger.info("Terminated an MPS client", extra={"daemon": uuid, "pid": pid})

    async def _clients_by_server(self, uuid: str) -> dict[int, frozenset[int]]:
        """Return the PIDs of a daemon's clients, by its servers' PIDs. Raises the errors of `_NO_ANSWER`."""
        servers = steps.pids(await self._daemons.send(uuid, "get_server_list"))
        return {server: steps.pids(await self._daemons.send(uuid, f"get_client_list {server}")) for server in servers}

    def _wanted(self) -> frozenset[str] | None:
        """Return the UUIDs of the GPUs that need a daemon; None while the GPUNode is unknown."""
        node = self._node()
        return None if node is None else _gpus_with_clients(node) & self._fractional()

    async def _is_used(self, uuid: str) -> bool:
        """Whether a daemon may have clients, now or soon. Awaits nothing after the last look at the ledger."""
        clients = await self.clients(uuid)
        has_clients = any(clients.values()) if clients is not None else await self._daemons.may_run(uuid)
        wanted, asked = self._wanted(), self._asked.get(uuid, -STARTING_SECONDS)
        is_starting = self._clock() < asked + STARTING_SECONDS
        return has_clients or is_starting or wanted is None or uuid in wanted or uuid not in self._fractional()

    async def _start(self, uuid: str) -> None:
        try:
            await self._daemons.start(self._spec(uuid))
        except (ControlError, OSError) as error:  # it is retried; `problem` says why meanwhile
            if isinstance(error, sm_partitions.TooManyError):
                self._too_many.add((uuid, self._daemons.partitions(uuid) or 0))
            logger.warning("An MPS daemon does not start", extra={"daemon": uuid, "err": str(error)})

    def _spec(self, uuid: str) -> steps.Spec:
        """Return the daemon as it runs, or as placement knows it from the GPUNode. Raises ControlError if unknown."""
        count, node = self._daemons.partitions(uuid), self._node()
        if count is None:
            gpu = node.gpu_by_uuid().get(uuid) if node is not None else None
            if gpu is None:
                raise ControlError(f"the GPUNode does not show {uuid} yet")
            count = gpu.sm_partitions
        return steps.for_shares(uuid, count)

    def _count_failures(self, uuid: str) -> None:
        now, count = self._clock(), self._daemons.server_failures(uuid)
        counted = self._failures.setdefault(uuid, [])
        counted.append((now, count))
        while counted[0][0] < now - WINDOW_SECONDS:
            del counted[0]


def _gpus_with_clients(node: GpuNode) -> frozenset[str]:
    """Return the UUIDs of the GPUs on which a pod has a share with the isolation mps."""
    entries = (entry for entry in node.allocations if entry.labels.isolation is Isolation.MPS)
    return frozenset(uuid for entry in entries if not entry.is_backfill_reservation for uuid in entry.gpu_uuids)
