"""The leases of all GPUs: which client is at which of them, and when each of them has to be looked at again.

The clock is ours alone: nothing a client says about time is asked for.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from deviceplugin.arbiter import wire
from deviceplugin.arbiter.scheduling.coscheduled_gpu import CoscheduledGpu
from deviceplugin.arbiter.scheduling.gangs import Gangs
from deviceplugin.arbiter.scheduling.gpu_leases import GpuLeases, LeaseClient, LeaseUsage, Numbers
from deviceplugin.arbiter.scheduling.lease_history import DebtCache
from deviceplugin.arbiter.tenant import Tenant

_NANOSECONDS: Final = 1e9
# After a start nobody is believed to be alone for so long: others from before may not have found us yet.
SETTLING_NS: Final = 10 * 1_000_000_000


# Who is let begin and has nothing to launch any more gives its turn to the next; what is left after so many of them is
# for the next event.
MAX_SETTLES: Final = 1000


class _Timer:
    """When a GPU is to be looked at again."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None
        self._due_ns = 0

    def set(self, due_ns: int | None, now_ns: int, callback: Callable[[], None]) -> None:
        """Ring then, if that is not so already; None: not at all."""
        if self._handle is not None and due_ns != self._due_ns:
            self.cancel()
        if self._handle is None and due_ns is not None:
            self._due_ns = due_ns
            seconds = max(0, due_ns - now_ns) / _NANOSECONDS
            self._handle = asyncio.get_running_loop().call_later(seconds, callback)

    def cancel(self) -> None:
        """Do not ring, or it has rung."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Leases:
    """To be used in a running event loop. `clock`: monotonic, in nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, *, settling_ns: int = SETTLING_NS) -> None:
        self._clock = clock
        self._settled_ns = clock() + settling_ns
        self._gpus: dict[str, GpuLeases] = {}
        self._timers: collections.defaultdict[str, _Timer] = collections.defaultdict(_Timer)
        self._gpus_of_client: collections.defaultdict[LeaseClient, set[str]] = collections.defaultdict(set)
        self._numbers = Numbers(clock())
        self._schedulers: dict[str, CoscheduledGpu] = {}
        self._gangs = Gangs(self._schedulers)
        self._gang_timer = _Timer()
        self._debts = DebtCache()

    def handle(self, client: LeaseClient, kind: int, lease: wire.Lease) -> None:
        """A client says that it wants, has closed, or has released; `said.card` is one of its grants."""
        now_ns = self._clock()
        uuid = self._join(client, lease.gpu, now_ns)
        self._gpus[uuid].handle(client, kind, lease, now_ns)
        self._settle(uuid, now_ns)

    def join(self, client: LeaseClient) -> None:
        """A process has been welcomed: whoever holds one of its GPUs is not alone there any more."""
        now_ns = self._clock()
        for gpu in range(len(client.tenant.grants)):
            self._settle(self._join(client, gpu, now_ns), now_ns)

    def update(self, tenant: Tenant) -> None:
        """A share has been given something else; that counts from now on, also in the middle of a lease."""
        now_ns = self._clock()
        for grant in tenant.grants:
            if grant.uuid in self._gpus:
                self._gpus[grant.uuid].update(tenant, grant, now_ns)
                self._settle(grant.uuid, now_ns)

    def observe(self, works: Mapping[tuple[str, str], bool]) -> None:
        """By a GPU's UUID and a share's key, whether the driver has run anything of it there lately."""
        now_ns = self._clock()
        for (uuid, key), runs in works.items():
            if uuid in self._gpus:
                self._gpus[uuid].observe(key, now_ns, works=runs)
                self._settle(uuid, now_ns)

    def remove(self, client: LeaseClient) -> None:
        """It has gone, and what it ran with it."""
        now_ns = self._clock()
        for uuid in self._gpus_of_client.pop(client, set()):
            self._gpus[uuid].remove(client, now_ns)
            if client.tenant.key not in self._schedulers[uuid].shares:
                self._gangs.leave(client.tenant.key, uuid)
            self._settle(uuid, now_ns)

    @property
    def gangs(self) -> Mapping[str, Mapping[str, str]]:
        """Of each gang, by name, the share that it has at each GPU."""
        return self._gangs.shares

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that somebody is at, by UUID."""
        return tuple(self._gpus)

    def settle(self) -> None:
        """From now on believe who is alone: nobody is here from before."""
        self._settled_ns = 0

    def tick(self, uuid: str) -> None:
        """Time has passed at a GPU that somebody is at; timers of our own do this when it is due."""
        self._timers[uuid].cancel()
        now_ns = self._clock()
        self._gpus[uuid].tick(now_ns)
        self._settle(uuid, now_ns)

    def usage(self) -> Iterator[LeaseUsage]:
        """What every share that is here now has had."""
        now_ns = self._clock()
        for gpu in self._gpus.values():
            yield from gpu.usage(now_ns)

    def close(self) -> None:
        """Forget everything, say nothing; clients keep what they have until they find the next agent."""
        for timer in self._timers.values():
            timer.cancel()
        self._gang_timer.cancel()
        self._timers.clear()
        self._schedulers.clear()
        self._gpus.clear()
        self._gpus_of_client.clear()

    def _join(self, client: LeaseClient, gpu: int, now_ns: int) -> str:
        """Let it be at this GPU; return the GPU's UUID."""
        uuid = client.tenant.grants[gpu].uuid
        if uuid not in self._gpus:
            self._gpus[uuid] = GpuLeases(uuid, self._numbers, self._debts, settled=self._is_settled)
            self._schedulers[uuid] = self._gpus[uuid].scheduler
        self._gpus[uuid].join(client, gpu, now_ns)
        if len(client.tenant.grants) > 1 or client.tenant.group:
            uuids = [grant.uuid for grant in client.tenant.grants]
            self._gangs.join(client.tenant.key, uuid, now_ns, uuids=uuids, group=client.tenant.group)
        self._gpus_of_client[client].add(uuid)
        return uuid

    def _is_settled(self) -> bool:
        return self._clock() >= self._settled_ns

    def _settle(self, uuid: str, now_ns: int) -> None:
        """After every event: what has changed is told, and the next moment is waited for."""
        for _ in range(MAX_SETTLES):
            commands = self._gangs.settle(now_ns)
            for other, command in commands:
                self._gpus[other].execute([command])
            if not commands:
                break
        touched = {uuid, *(other for other, scheduler in self._schedulers.items() if scheduler.changed)}
        self._gang_timer.set(self._gangs.due_ns(now_ns), now_ns, self._tick_gangs)
        for gpu_uuid in sorted(touched):
            gpu = self._gpus[gpu_uuid]
            gpu.settle(now_ns)
            self._timers[gpu_uuid].set(gpu.due_ns(), now_ns, functools.partial(self.tick, gpu_uuid))
            if gpu.empty:
                self._timers.pop(gpu_uuid).cancel()
                del self._gpus[gpu_uuid], self._schedulers[gpu_uuid]

    def _tick_gangs(self) -> None:
        self._gang_timer.cancel()
        if self._gpus:
            self._settle(next(iter(self._gpus)), self._clock())
