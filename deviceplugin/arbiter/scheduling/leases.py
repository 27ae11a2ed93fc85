"""The leases of all GPUs: turns messages of clients into scheduler events, and the schedulers' commands into messages.

A lease belongs to a share: all its processes that have something to launch use it together. It ends when the last of
them has returned it. Only the arbiter's own clock counts; clients send no times.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from deviceplugin.arbiter import wire
from deviceplugin.arbiter.scheduling.account import Entitlement, PayingAccount
from deviceplugin.arbiter.scheduling.coscheduled_gpu import CoscheduledGpu
from deviceplugin.arbiter.scheduling.gangs import Gangs
from deviceplugin.arbiter.scheduling.gpu_share import Activity, Debts, LeasePhase, Open, RecentUse, Revoke, WaitClock
from deviceplugin.arbiter.tenant import Grant, Tenant
from gpushare import contract
from gpushare.allocation import Isolation

_NANOSECONDS: Final = 1e9
# For this time after a start no share counts as alone: processes from before may not have reconnected yet.
SETTLING_NS: Final = 10 * 1_000_000_000
# A share that is granted a turn but has nothing to launch passes it on. After this many times the rest waits for the
# next event.
MAX_SETTLES: Final = 1000


class LeaseClient(Protocol):
    """The connection of a process that may ask for leases."""

    @property
    def tenant(self) -> Tenant: ...

    def send(self, message: bytes) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseUsage:
    """A share's use of one GPU since its first process came.

    seconds: charged time. leases: how many it had. recent: the fraction of the last seconds, or None if unknown.
    waited_seconds: it wanted the GPU and did not hold it. throttled_seconds: part of that, because of its own limit.
    evictions: how often it did not return the GPU in time. had_seconds: from its leases until it returned the GPU,
    whether charged or not; late returns count for ten seconds.
    """

    tenant: Tenant
    gpu_uuid: str
    seconds: float
    leases: int
    recent: float | None
    waited_seconds: float = 0.0
    throttled_seconds: float = 0.0
    evictions: int = 0
    had_seconds: float = 0.0


class _ShareClients:
    """The processes of a share at this GPU, and the messages that they got last."""

    def __init__(self, tenant: Tenant, now_ns: int) -> None:
        self.tenant = tenant
        self.recent = RecentUse(now_ns)
        self.waits = WaitClock(now_ns)
        self.flags = 0
        self.clients: dict[LeaseClient, int] = {}  # with the position of this GPU in the client's limits page
        self.wanting: set[LeaseClient] = set()
        # By client, the number of its lease. It is new each time: a late message about a lease that was returned would
        # otherwise open the gate of a client that has just asked again.
        self.holding: dict[LeaseClient, int] = {}
        self.closed: set[LeaseClient] = set()  # the part of `holding` that has closed its gate


@dataclasses.dataclass(eq=False)
class GpuLeases:
    """The leases of the GPU with this UUID. Call `settle` after each event.

    numbers: of leases. They keep rising over restarts, so that no two leases are confused. settled: whether all
    processes from before the arbiter's restart must have reconnected by now.
    """

    uuid: str
    numbers: Iterator[int]
    debts: Debts
    _: dataclasses.KW_ONLY
    settled: Callable[[], bool]

    def __post_init__(self) -> None:
        self.scheduler = CoscheduledGpu()
        self.shares: dict[str, _ShareClients] = {}
        self._urgent: set[str] = set()  # keys of the latency class

    def execute(self, commands: Iterable[Open | Revoke]) -> None:
        for command in commands:
            share = self.shares[command.key]
            if isinstance(command, Open):
                self._open(share, again=command.again)
                continue
            for client, number in share.holding.items():
                client.send(wire.revoked(wire.Lease(share.clients[client], 0, number)))

    def join(self, client: LeaseClient, gpu: int, now_ns: int) -> None:
        """Add a process. `gpu` is the position of this GPU in its limits page."""
        key = client.tenant.key
        if key not in self.shares:
            self.shares[key] = _ShareClients(client.tenant, now_ns)
            gpu_share = self.debts.pop(self.uuid, key)
            if gpu_share is not None:
                self.scheduler.shares[key] = gpu_share
            self.update(client.tenant, client.tenant.grants[gpu], now_ns)
        self.shares[key].clients.setdefault(client, gpu)

    def update(self, tenant: Tenant, grant: Grant, now_ns: int) -> None:
        """Apply the share's amounts; no-op if it has no process here."""
        if tenant.key in self.shares:
            self.shares[tenant.key].tenant = tenant
            (self._urgent.add if tenant.latency else self._urgent.discard)(tenant.key)
            entitlement = Entitlement(grant.request_percent, grant.limit_percent, tenant.latency)
            self.execute(self.scheduler.join(tenant.key, entitlement, now_ns))

    def observe(self, key: str, now_ns: int, *, works: bool) -> None:
        if key in self.shares:
            self.execute(self.scheduler.observe(key, now_ns, works=works))

    def remove(self, client: LeaseClient, now_ns: int) -> None:
        """Remove a process that has exited, and its running work."""
        share = self.shares[client.tenant.key]
        share.wanting.discard(client)
        self._released(share, client, now_ns)
        del share.clients[client]
        if not share.clients:
            key = share.tenant.key
            gpu_share = self.scheduler.shares[key]
            del self.shares[key]
            self._urgent.discard(key)
            self.execute(self.scheduler.remove(key, now_ns))
            self.debts.store(self.uuid, key, gpu_share, now_ns)

    def handle(self, client: LeaseClient, kind: int, lease: wire.Lease, now_ns: int) -> None:
        """Handle WANT, CLOSED or RELEASED from a client that has joined."""
        share = self.shares[client.tenant.key]
        if kind == contract.MESSAGE_WANT:
            self._want(share, client, now_ns, held=bool(lease.flags & contract.LEASE_HELD))
        elif lease.number != share.holding.get(client):
            pass  # about an earlier lease: the message was sent before the client got this one
        elif kind == contract.MESSAGE_CLOSED:
            share.closed.add(client)
            if share.closed == share.holding.keys():
                self.execute(self.scheduler.closed(share.tenant.key, now_ns))
        elif kind == contract.MESSAGE_RELEASED:
            self._released(share, client, now_ns)

    def settle(self, now_ns: int) -> None:
        """Send flags that have changed, and record what each changed share does now."""
        key = self.scheduler.holder
        if key is not None and self.scheduler.shares[key].phase is LeasePhase.OPEN:
            share = self.shares[key]
            flags = self._flags(share)
            if flags != share.flags:
                share.flags = flags
                for client in share.holding:
                    self._send_open(share, client)
                self.scheduler.changed.add(key)
        for share_key in self.scheduler.changed:
            share = self.shares[share_key]
            share.recent.record(self._activity(share_key, share), now_ns)
            share.waits.record(self.scheduler.shares[share_key], now_ns)
        self.scheduler.changed.clear()

    def usage(self, now_ns: int) -> Iterator[LeaseUsage]:
        for key, share in self.shares.items():
            gpu_share = self.scheduler.shares[key]
            waited_ns, throttled_ns = share.waits.waited_ns(now_ns)
            yield LeaseUsage(
                share.tenant,
                self.uuid,
                seconds=gpu_share.account.held_by_ns(now_ns) / _NANOSECONDS,
                leases=gpu_share.leases,
                recent=share.recent.ratio(now_ns),
                waited_seconds=waited_ns / _NANOSECONDS,
                throttled_seconds=throttled_ns / _NANOSECONDS,
                evictions=share.waits.evictions,
                had_seconds=share.waits.held_ns(now_ns) / _NANOSECONDS,
            )

    def _want(self, share: _ShareClients, client: LeaseClient, now_ns: int, *, held: bool) -> None:
        key = share.tenant.key
        gpu_share = self.scheduler.shares[key]
        # A client that reports a lease from before the restart is believed once, and only before its first lease here.
        # Otherwise it could get turns beyond its limit.
        believed = held and not gpu_share.leases and not self.settled()
        if believed and self.scheduler.adopt(key, now_ns):
            share.wanting.add(client)
            self._open(share)
        elif self.scheduler.holder == key and gpu_share.phase is LeasePhase.OPEN:
            self._grant(share, client)
        else:
            if held:
                client.send(wire.revoked(wire.Lease(share.clients[client], 0, 0)))
            share.wanting.add(client)
            self.execute(self.scheduler.want(key, now_ns))

    def _released(self, share: _ShareClients, client: LeaseClient, now_ns: int) -> None:
        if client not in share.holding:
            return
        del share.holding[client]
        share.closed.discard(client)
        key = share.tenant.key
        if not share.holding:
            self.execute(self.scheduler.released(key, now_ns))
            if share.wanting and not share.holding:
                self.execute(self.scheduler.want(key, now_ns))
        elif share.closed == share.holding.keys():
            self.execute(self.scheduler.closed(key, now_ns))

    def _open(self, share: _ShareClients, *, again: bool = False) -> None:
        share.flags = self._flags(share)
        wanting, share.wanting = share.wanting, set()
        if not again:
            share.holding, share.closed = {}, set()
        for client in wanting:
            self._grant(share, client)
        if not wanting:  # the process that wanted it has gone, and the others want nothing
            key = share.tenant.key
            self.execute(self.scheduler.released(key, self.scheduler.shares[key].since_ns))

    def _grant(self, share: _ShareClients, client: LeaseClient) -> None:
        share.holding[client] = next(self.numbers)
        share.closed.discard(client)
        self._send_open(share, client)

    def _send_open(self, share: _ShareClients, client: LeaseClient) -> None:
        client.send(wire.opened(wire.Lease(share.clients[client], share.flags, share.holding[client])))

    def _activity(self, key: str, share: _ShareClients) -> Activity:
        gpu_share = self.scheduler.shares[key]
        if gpu_share.phase is None or gpu_share.account.charge is PayingAccount.NOTHING:
            return Activity.IDLE  # also while it is charged for a reserved GPU
        asked_for = self.scheduler.holder != key or share.flags & contract.LEASE_CONTENDED
        return Activity.BUSY if asked_for else Activity.UNKNOWN

    def _flags(self, share: _ShareClients) -> int:
        """Return the flags of the share's lease. A share that is alone and has no limit need not count its launches."""
        key = share.tenant.key
        limited = self.scheduler.shares[key].account.limited
        alone = len(self.shares) == 1 and self.settled()
        counted = 0 if alone and not limited else contract.LEASE_COUNTED
        contended = contract.LEASE_CONTENDED if limited or self.scheduler.contended(key) else 0
        near = len(self._urgent) > (key in self._urgent)
        return counted | contended | (contract.LEASE_BRIEF if near else 0)


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
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Leases:
    """The leases of a node, inside a running event loop. `clock` is monotonic, in nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, *, settling_ns: int = SETTLING_NS) -> None:
        self._clock = clock
        self.settled_ns = clock() + settling_ns  # all processes from before the restart have reconnected then
        self.gpus: dict[str, GpuLeases] = {}
        self._timers: collections.defaultdict[str, _Timer] = collections.defaultdict(_Timer)
        self._gpus_of_client: collections.defaultdict[LeaseClient, set[str]] = collections.defaultdict(set)
        self._numbers = itertools.count(clock() + 1)
        self._schedulers: dict[str, CoscheduledGpu] = {}
        self.gangs = Gangs(self._schedulers)
        self._gang_timer = _Timer()
        self._debts = Debts()

    def handle(self, client: LeaseClient, kind: int, lease: wire.Lease) -> None:
        """Handle WANT, CLOSED or RELEASED. `lease.gpu` is one of the client's grants."""
        if client.tenant.isolation is not Isolation.ARBITER:  # no turns: grant what a share gets that is alone
            if kind == contract.MESSAGE_WANT:
                client.send(wire.opened(wire.Lease(lease.gpu, 0, next(self._numbers))))
            return
        now_ns = self._clock()
        uuid = self._join(client, lease.gpu, now_ns)
        self.gpus[uuid].handle(client, kind, lease, now_ns)
        self._settle(uuid, now_ns)

    def join(self, client: LeaseClient) -> None:
        """Add a welcomed process to its GPUs, so that no other share counts as alone there."""
        if client.tenant.isolation is not Isolation.ARBITER:
            return
        now_ns = self._clock()
        for gpu in range(len(client.tenant.grants)):
            self._settle(self._join(client, gpu, now_ns), now_ns)

    def update(self, tenant: Tenant) -> None:
        """Apply a share's new limits at once, even during a lease."""
        now_ns = self._clock()
        for grant in tenant.grants:
            if grant.uuid in self.gpus:
                self.gpus[grant.uuid].update(tenant, grant, now_ns)
                self._settle(grant.uuid, now_ns)

    def observe(self, works: Mapping[tuple[str, str], bool]) -> None:
        """Record whether the driver has recently run work, by GPU UUID and share key."""
        now_ns = self._clock()
        for (uuid, key), runs in works.items():
            if uuid in self.gpus:
                self.gpus[uuid].observe(key, now_ns, works=runs)
                self._settle(uuid, now_ns)

    def remove(self, client: LeaseClient) -> None:
        now_ns = self._clock()
        for uuid in self._gpus_of_client.pop(client, set()):
            self.gpus[uuid].remove(client, now_ns)
            if client.tenant.key not in self._schedulers[uuid].shares:
                self.gangs.remove(client.tenant.key, uuid)
            self._settle(uuid, now_ns)

    def tick(self, uuid: str) -> None:
        """Let time pass at a GPU with processes. The timers call this when it is due."""
        self._timers[uuid].cancel()
        now_ns = self._clock()
        gpu = self.gpus[uuid]
        gpu.execute(gpu.scheduler.tick(now_ns))
        self._settle(uuid, now_ns)

    def usage(self) -> Iterator[LeaseUsage]:
        now_ns = self._clock()
        for gpu in self.gpus.values():
            yield from gpu.usage(now_ns)

    def close(self) -> None:
        """Drop everything without a message. Clients keep their leases until they find the next arbiter."""
        for timer in self._timers.values():
            timer.cancel()
        self._gang_timer.cancel()
        for known in (self._timers, self._schedulers, self.gpus, self._gpus_of_client):
            known.clear()

    def _join(self, client: LeaseClient, gpu: int, now_ns: int) -> str:
        """Add the client to this GPU, and return the GPU's UUID."""
        uuid = client.tenant.grants[gpu].uuid
        if uuid not in self.gpus:
            self.gpus[uuid] = GpuLeases(
                uuid, self._numbers, self._debts, settled=lambda: self._clock() >= self.settled_ns
            )
            self._schedulers[uuid] = self.gpus[uuid].scheduler
        self.gpus[uuid].join(client, gpu, now_ns)
        if len(client.tenant.grants) > 1 or client.tenant.group:
            uuids = [grant.uuid for grant in client.tenant.grants]
            self.gangs.join(client.tenant.key, uuid, now_ns, uuids=uuids, group=client.tenant.group)
        self._gpus_of_client[client].add(uuid)
        return uuid

    def _settle(self, uuid: str, now_ns: int) -> None:
        """Send what has changed, and set the timers. Called after every event."""
        for _ in range(MAX_SETTLES):
            commands = self.gangs.settle(now_ns)
            for other, command in commands:
                self.gpus[other].execute([command])
            if not commands:
                break
        touched = {uuid, *(other for other, scheduler in self._schedulers.items() if scheduler.changed)}
        self._gang_timer.set(self.gangs.due_ns(now_ns), now_ns, self._tick_gangs)
        for gpu_uuid in sorted(touched):
            gpu = self.gpus[gpu_uuid]
            gpu.settle(now_ns)
            self._timers[gpu_uuid].set(gpu.scheduler.due_ns(), now_ns, functools.partial(self.tick, gpu_uuid))
            if not gpu.shares:
                self._timers.pop(gpu_uuid).cancel()
                del self.gpus[gpu_uuid], self._schedulers[gpu_uuid]

    def _tick_gangs(self) -> None:
        self._gang_timer.cancel()
        if self.gpus:
            self._settle(next(iter(self.gpus)), self._clock())
