"""Leases on a clock that the test turns, and clients that remember their messages."""

from __future__ import annotations

import dataclasses
import struct

from deviceplugin.arbiter import wire
from deviceplugin.arbiter.scheduling import leases
from deviceplugin.arbiter.tenant import Grant, Tenant
from gpushare import contract

MS = 1_000_000
HEADER = struct.calcsize(contract.WIRE_HEADER)


@dataclasses.dataclass(eq=False)
class Client:
    """A process, and the messages that it got."""

    tenant: Tenant
    told: list[tuple[int, int, int, int]] = dataclasses.field(default_factory=list)
    returned: int | None = None  # the number of the lease that it returned last

    def send(self, message: bytes) -> None:
        kind = struct.unpack_from(contract.WIRE_HEADER, message)[2]
        self.told.append((kind, *struct.unpack_from(contract.WIRE_LEASE, message, HEADER)))

    def last(self) -> tuple[int, int]:
        """The kind and flags of the last message."""
        kind, _, flags, _ = self.told[-1]
        return kind, flags

    @property
    def number(self) -> int:
        return self.told[-1][3]

    @property
    def may_launch(self) -> bool:
        return bool(self.told) and self.last()[0] == contract.MESSAGE_OPEN and self.number != self.returned


class Node:
    """Leases on a clock that the test turns."""

    def __init__(self, *, settling_ns: int = 0) -> None:
        self.now_ns = 1000 * MS
        self.leases = leases.Leases(lambda: self.now_ns, settling_ns=settling_ns)

    def client(self, pod: str, *, request: int = 50, limit: int = 100, gpus: tuple[str, ...] = ("GPU-0",)) -> Client:
        grants = tuple(Grant(uuid, 1 << 30, request, limit) for uuid in gpus)
        made = Client(Tenant(pod, "default", pod, ("main",), 0, grants))
        self.leases.join(made)
        return made

    def says(self, client: Client, kind: int, *, gpu: int = 0, flags: int = 0, number: int | None = None) -> None:
        number = (client.number if client.told else 0) if number is None else number
        if kind == contract.MESSAGE_RELEASED:
            client.returned = number
        self.leases.handle(client, kind, wire.Lease(gpu, flags, number))

    def later(self, milliseconds: int) -> None:
        """Let time pass, without waiting for the arbiter's own timers."""
        self.now_ns += milliseconds * MS
        for uuid in list(self.leases.gpus):
            self.leases.tick(uuid)
