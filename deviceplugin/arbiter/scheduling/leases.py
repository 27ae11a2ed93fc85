"""The leases of all GPUs: which clients use which GPU, and a timer for each.

Only the arbiter's own clock counts; clients send no times.
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
from deviceplugin.arbiter.scheduling.gpu_leases import GpuLeases, LeaseClient, LeaseNumbers, LeaseUsage
from deviceplugin.arbiter.scheduling.lease_history import DebtCache
from deviceplugin.arbiter.tenant import Tenant

_NANOSECONDS: Final = 1e9
# For this time after a start no share counts as alone: processes from before may not have reconnected yet.
SETTLING_NS: Final = 10 * 1_000_000_000


# A share that is granted a turn but has nothing to launch passes it on. After this many times the rest waits for the
# next event.
MAX_SETTLES: Final = 1000


class _Timer:
    """A timer with one due time."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None
        self._due_ns = 0

    def set(self, due_ns: int | None, now_ns: int, callback: Callable[[], None]) -> None:
        """Call `callback` at this time, or never for None. No-op if the timer is set to it already."""
        if self._handle is not None and due_ns != self._due_ns:
            self.cancel()
        if self._handle is None and due_ns is not None:
            self._due_ns = due_ns
            seconds = max(0, due_ns - now_ns) / _NANOSECONDS
            self._handle = asyncio.get_running_loop().call_later(seconds, callback)

    def cancel(self) -> None:
        """Cancel the timer, or mark it as fired."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Leases:
    """The leases of a node, inside a running event loop. `clock` is monotonic, in nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, *, settling_ns: int = SETTLING_NS) -> None:
        self._clock = clock
        self._settled_ns = clock() + settling_ns
        self._gpus: dict[str, GpuLeases] = {}
        self._timers: collections.defaultdict[str, _Timer] = collections.defaultdict(_Timer)
        self._gpus_of_client: collections.defaultdict[LeaseClient, set[str]] = collections.defaultdict(set)
        self._numbers = LeaseNumbers(clock())
        self._schedulers: dict[str, CoscheduledGpu] = {}
        self._gangs = Gangs(self._schedulers)
        self._gang_timer = _Timer()
        self._debts = DebtCache()

    def handle(self, client: LeaseClient, kind: int, lease: wire.Lease) -> None:
        """Handle WANT, CLOSED or RELEASED. `lease.gpu` is one of the client's grants."""
        now_ns = self._clock()
        uuid = self._join(client, lease.gpu, now_ns)
        self._gpus[uuid].handle(client, kind, lease, now_ns)
        self._settle(uuid, now_ns)

    def join(self, client: LeaseClient) -> None:
        """Add a welcomed process to its GPUs, so that no other share counts as alone there."""
        now_ns = self._clock()
        for gpu in range(len(client.tenant.grants)):
            self._settle(self._join(client, gpu, now_ns), now_ns)

    def update(self, tenant: Tenant) -> None:
        """Apply a share's new limits at once, even during a lease."""
        now_ns = self._clock()
        for grant in tenant.grants:
            if grant.uuid in self._gpus:
                self._gpus[grant.uuid].update(tenant, grant, now_ns)
                self._settle(grant.uuid, now_ns)

    def observe(self, works: Mapping[tuple[str, str], bool]) -> None:
        """Record whether the driver has recently run work, by GPU UUID and share key."""
        now_ns = self._clock()
        for (uuid, key), runs in works.items():
            if uuid in self._gpus:
                self._gpus[uuid].observe(key, now_ns, works=runs)
                self._settle(uuid, now_ns)

    def remove(self, client: LeaseClient) -> None:
        """Remove a client that has gone, and its running work."""
        now_ns = self._clock()
        for uuid in self._gpus_of_client.pop(client, set()):
            self._gpus[uuid].remove(client, now_ns)
            if client.tenant.key not in self._schedulers[uuid].shares:
                self._gangs.remove(client.tenant.key, uuid)
            self._settle(uuid, now_ns)

    @property
    def gangs(self) -> Mapping[str, Mapping[str, str]]:
        """The share that each gang has at each GPU, by the gang's name."""
        return self._gangs.shares

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of GPUs with processes."""
        return tuple(self._gpus)

    def settle(self) -> None:
        """End the settling time: all processes from before the restart have reconnected."""
        self._settled_ns = 0

    def tick(self, uuid: str) -> None:
        """Let time pass at a GPU with processes. The timers call this when it is due."""
        self._timers[uuid].cancel()
        now_ns = self._clock()
        self._gpus[uuid].tick(now_ns)
        self._settle(uuid, now_ns)

    def usage(self) -> Iterator[LeaseUsage]:
        """Yield the use of every share at every GPU."""
        now_ns = self._clock()
        for gpu in self._gpus.values():
            yield from gpu.usage(now_ns)

    def close(self) -> None:
        """Drop everything without a message. Clients keep their leases until they find the next arbiter."""
        for timer in self._timers.values():
            timer.cancel()
        self._gang_timer.cancel()
        self._timers.clear()
        self._schedulers.clear()
        self._gpus.clear()
        self._gpus_of_client.clear()

    def _join(self, client: LeaseClient, gpu: int, now_ns: int) -> str:
        """Add the client to this GPU, and return the GPU's UUID."""
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
        """Send what has changed, and set the timers. Called after every event."""
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
