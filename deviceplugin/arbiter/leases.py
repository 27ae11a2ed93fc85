"""The leases of all GPUs: what clients say becomes events of `turns`, and its commands become messages.

A lease is a share's: all of its processes that have something to launch have it together, and it ends when the last of
them has given it back. The clock is ours alone: nothing a client says about time is asked for.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from deviceplugin.arbiter import wire
from deviceplugin.arbiter.account import Charge, Entitlement
from deviceplugin.arbiter.recent import Recent, Sight
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.arbiter.turns import Command, Open, Phase, Turns
from gpushare import contract

_NANOSECONDS: Final = 1e9
# After a start nobody is believed to be alone for so long: others from before may not have found us yet.
SETTLING_NS: Final = 10 * 1_000_000_000


class Client(Protocol):
    """A process that has been welcomed."""

    @property
    def tenant(self) -> Tenant:
        """Its share."""

    def tell(self, message: bytes) -> None:
        """Send a message to it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """For how long a share has had a GPU, since it came, and how often.

    recent: what part of the last seconds it used, from 0 to 1; None while that is not known.
    """

    tenant: Tenant
    gpu_uuid: str
    seconds: float
    leases: int
    recent: float | None


class _Share:
    """A share at one GPU: its processes there, and what each was told last."""

    def __init__(self, tenant: Tenant, now_ns: int) -> None:
        self.tenant = tenant
        self.recent = Recent(now_ns)
        self.flags = 0
        self.clients: dict[Client, int] = {}  # with the place of this GPU in the client's limits page
        self.wanting: set[Client] = set()
        # With the number that each knows it by: a new one each time, or what was told of one that a process has given
        # back would open its gate when it has just asked again.
        self.having: dict[Client, int] = {}
        self.closed: set[Client] = set()  # of those


class _Gpu:
    """One GPU."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.shares: dict[str, _Share] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.timer_ns = 0


class Leases:
    """To be used in a running event loop. `clock`: monotonic, in nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, *, settling_ns: int = SETTLING_NS) -> None:
        self._clock = clock
        self._settled_ns = clock() + settling_ns
        self._gpus: dict[str, _Gpu] = {}
        self._of_client: collections.defaultdict[Client, set[str]] = collections.defaultdict(set)
        # Numbers go on rising over a restart of the agent, so that none is taken for another one.
        self._number = clock()

    def said(self, client: Client, kind: int, said: wire.Lease) -> None:
        """A client says that it wants, has closed, or has released; `said.card` is one of its grants."""
        grant = client.tenant.grants[said.card]
        gpu = self._gpus.setdefault(grant.uuid, _Gpu())
        now_ns = self._clock()
        share = self._joined(gpu, client, said.card, grant, now_ns)
        if kind == contract.MESSAGE_WANT:
            self._want(gpu, share, client, now_ns, held=bool(said.flags & contract.LEASE_HELD))
        elif said.number != share.having.get(client):
            pass  # of a lease that it has no more: it gives back what it had before it knew of this one
        elif kind == contract.MESSAGE_CLOSED:
            share.closed.add(client)
            if share.closed == share.having.keys():
                self._do(gpu, gpu.turns.closed(share.tenant.key, now_ns))
        elif kind == contract.MESSAGE_RELEASED:
            self._released(gpu, share, client, now_ns)
        self._settle(grant.uuid, gpu, now_ns)

    def joined(self, client: Client) -> None:
        """A process has been welcomed: whoever holds one of its GPUs is not alone there any more."""
        now_ns = self._clock()
        for card, grant in enumerate(client.tenant.grants):
            gpu = self._gpus.setdefault(grant.uuid, _Gpu())
            self._joined(gpu, client, card, grant, now_ns)
            self._settle(grant.uuid, gpu, now_ns)

    def changed(self, tenant: Tenant) -> None:
        """A share has been given something else; that counts from now on, also in the middle of a lease."""
        now_ns = self._clock()
        for grant in tenant.grants:
            gpu = self._gpus.get(grant.uuid)
            if gpu is not None and tenant.key in gpu.shares:
                self._renew(gpu, tenant, grant, now_ns)
                self._settle(grant.uuid, gpu, now_ns)

    def left(self, client: Client) -> None:
        """It has gone, and what it ran with it."""
        now_ns = self._clock()
        for uuid in self._of_client.pop(client, set()):
            gpu = self._gpus[uuid]
            share = gpu.shares[client.tenant.key]
            share.wanting.discard(client)
            self._released(gpu, share, client, now_ns)
            del share.clients[client]
            if not share.clients:
                del gpu.shares[share.tenant.key]
                self._do(gpu, gpu.turns.leave(share.tenant.key, now_ns))
            self._settle(uuid, gpu, now_ns)

    def settle(self) -> None:
        """From now on believe who is alone: nobody is here from before."""
        self._settled_ns = 0

    def held(self) -> Iterator[Held]:
        """What every share that is here now has had."""
        now_ns = self._clock()
        for uuid, gpu in self._gpus.items():
            for key, share in gpu.shares.items():
                seat = gpu.turns.seats[key]
                seconds = seat.account.held_by_ns(now_ns) / _NANOSECONDS
                yield Held(share.tenant, uuid, seconds, seat.leases, share.recent.ratio(now_ns))

    def close(self) -> None:
        """Forget everything, say nothing; clients keep what they have until they find the next agent."""
        for gpu in self._gpus.values():
            if gpu.timer is not None:
                gpu.timer.cancel()
        self._gpus.clear()
        self._of_client.clear()

    def _joined(self, gpu: _Gpu, client: Client, card: int, grant: Grant, now_ns: int) -> _Share:
        key = client.tenant.key
        share = gpu.shares.get(key)
        if share is None:
            share = gpu.shares[key] = _Share(client.tenant, now_ns)
            self._renew(gpu, client.tenant, grant, now_ns)
        if client not in share.clients:
            share.clients[client] = card
            self._of_client[client].add(grant.uuid)
        return share

    def _renew(self, gpu: _Gpu, tenant: Tenant, grant: Grant, now_ns: int) -> None:
        gpu.shares[tenant.key].tenant = tenant
        given = Entitlement(grant.request_percent, grant.limit_percent, tenant.latency)
        self._do(gpu, gpu.turns.join(tenant.key, given, now_ns))

    def _want(self, gpu: _Gpu, share: _Share, client: Client, now_ns: int, *, held: bool) -> None:
        key = share.tenant.key
        if held and gpu.turns.adopt(key, now_ns):
            share.wanting.add(client)
            self._give(gpu, share)
        elif gpu.turns.holder == key and gpu.turns.seats[key].phase is Phase.OPEN:
            self._hand(share, client)
        else:
            if held:
                client.tell(wire.revoked(wire.Lease(share.clients[client], 0, 0)))
            share.wanting.add(client)
            self._do(gpu, gpu.turns.want(key, now_ns))

    def _released(self, gpu: _Gpu, share: _Share, client: Client, now_ns: int) -> None:
        if client not in share.having:
            return
        del share.having[client]
        share.closed.discard(client)
        key = share.tenant.key
        if not share.having:
            self._do(gpu, gpu.turns.released(key, now_ns))
            if share.wanting and not share.having:
                self._do(gpu, gpu.turns.want(key, now_ns))
        elif share.closed == share.having.keys():
            self._do(gpu, gpu.turns.closed(key, now_ns))

    def _do(self, gpu: _Gpu, commands: list[Command]) -> None:
        for command in commands:
            share = gpu.shares[command.key]
            if isinstance(command, Open):
                self._give(gpu, share)
                continue
            for client, number in share.having.items():
                client.tell(wire.revoked(wire.Lease(share.clients[client], 0, number)))

    def _give(self, gpu: _Gpu, share: _Share) -> None:
        share.flags = self._flags(gpu, share)
        wanting, share.wanting, share.having, share.closed = share.wanting, set(), {}, set()
        for client in wanting:
            self._hand(share, client)
        if not wanting:  # who asked for it has gone, and others of the share want nothing
            key = share.tenant.key
            self._do(gpu, gpu.turns.released(key, gpu.turns.seats[key].since_ns))

    def _hand(self, share: _Share, client: Client) -> None:
        self._number += 1
        share.having[client] = self._number
        share.closed.discard(client)
        self._send_open(share, client)

    def _send_open(self, share: _Share, client: Client) -> None:
        client.tell(wire.opened(wire.Lease(share.clients[client], share.flags, share.having[client])))

    def _settle(self, uuid: str, gpu: _Gpu, now_ns: int) -> None:
        """After every event: flags that have changed are told, and the next moment is waited for."""
        key = gpu.turns.holder
        if key is not None and gpu.turns.seats[key].phase is Phase.OPEN:
            share = gpu.shares[key]
            flags = self._flags(gpu, share)
            if flags != share.flags:
                share.flags = flags
                for client in share.having:
                    self._send_open(share, client)
        for each, share in gpu.shares.items():
            share.recent.see(self._sight(gpu, each, share), now_ns)
        if not gpu.shares:
            if gpu.timer is not None:
                gpu.timer.cancel()
            del self._gpus[uuid]
            return
        due_ns = gpu.turns.due_ns()
        if gpu.timer is not None and (due_ns is None or due_ns != gpu.timer_ns):
            gpu.timer.cancel()
            gpu.timer = None
        if gpu.timer is None and due_ns is not None:
            gpu.timer_ns = due_ns
            seconds = max(0, due_ns - now_ns) / _NANOSECONDS
            gpu.timer = asyncio.get_running_loop().call_later(seconds, self._tick, uuid)

    def _tick(self, uuid: str) -> None:
        gpu = self._gpus[uuid]
        gpu.timer = None
        now_ns = self._clock()
        self._do(gpu, gpu.turns.tick(now_ns))
        self._settle(uuid, gpu, now_ns)

    def _sight(self, gpu: _Gpu, key: str, share: _Share) -> Sight:
        if gpu.turns.seats[key].account.charge is Charge.NOTHING:
            return Sight.USES_NOT
        asked_for = gpu.turns.holder != key or share.flags & contract.LEASE_CONTENDED
        return Sight.USES if asked_for else Sight.UNKNOWN

    def _flags(self, gpu: _Gpu, share: _Share) -> int:
        """Alone on a GPU and without a limit, nobody needs to count."""
        key = share.tenant.key
        limited = gpu.turns.seats[key].account.limited
        alone = len(gpu.shares) == 1 and self._clock() >= self._settled_ns
        counted = 0 if alone and not limited else contract.LEASE_COUNTED
        contended = contract.LEASE_CONTENDED if limited or gpu.turns.contended(key) else 0
        near = any(each.tenant.latency for other, each in gpu.shares.items() if other != key)
        return counted | contended | (contract.LEASE_BRIEF if near else 0)
