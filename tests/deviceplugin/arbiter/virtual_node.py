"""Several GPUs on a virtual clock, and shares whose kernels wait for each other across them. Nothing here sleeps.

A step is a kernel on each GPU of a tenant, and of the tenants that it meets. It ends a while after all of them have
begun, and until then keeps its GPU busy. Kernels of two shares on one GPU alternate, as with the driver's time slices.
"""

from __future__ import annotations

import dataclasses

from deviceplugin.arbiter.scheduling.account import Entitlement
from deviceplugin.arbiter.scheduling.coscheduled_gpu import CoscheduledGpu
from deviceplugin.arbiter.scheduling.gangs import Gangs
from deviceplugin.arbiter.scheduling.gpu_share import Command, LeasePhase, Open, Revoke
from tests.deviceplugin.arbiter.virtual_gpu import MS, BrokenLawError

TICK_NS = MS // 5
KERNEL_NS = 2 * MS
IDLE_NS = 1 * MS  # an idle lease is returned after this time, while others wait
MAX_SETTLES = 20


@dataclasses.dataclass
class Tenant:
    """A share on these GPUs. `threads`: each GPU has its own launching thread; otherwise one thread launches on all in
    turn.

    tail_ns: its first GPU is busy for this long after each step, while the others are idle. again_ns: this long after a
    step's first launch it launches on that GPU again, and only then on the others.
    """

    gpus: tuple[int, ...]
    given: Entitlement
    threads: bool = True
    group: str = ""
    meets: str = ""  # its kernels wait for those of tenants with the same name
    tail_ns: int = 0
    again_ns: int = 0
    steps: int = 0
    launched: dict[int, int] = dataclasses.field(default_factory=dict)
    open: set[int] = dataclasses.field(default_factory=set)
    asked_ns: dict[int, int] = dataclasses.field(default_factory=dict)  # a message is on its way
    done_ns: float = 0  # of the step that all have begun
    first_ns: int = 0  # when the step's first launch was
    once_more: int = 0  # the step whose two launches the first GPU has had
    idle_ns: dict[int, int] = dataclasses.field(default_factory=dict)  # since when it is idle with the lease

    def is_launched(self, gpu: int) -> bool:
        return self.launched.get(gpu, 0) > self.steps

    def runs_on(self, gpu: int) -> bool:
        return self.is_launched(gpu) and (gpu == self.gpus[0] or self.done_ns < KERNEL_NS)

    def is_stuck(self) -> bool:
        return any(map(self.is_launched, self.gpus)) and not all(map(self.is_launched, self.gpus))

    def next_launches(self, now_ns: int) -> list[int]:
        waiting = [gpu for gpu in self.gpus if not self.is_launched(gpu)]
        if self.again_ns and self.is_launched(self.gpus[0]) and self.once_more <= self.steps:
            return [self.gpus[0]] if now_ns >= self.first_ns + self.again_ns else []
        return waiting if self.threads and not self.again_ns else waiting[:1]

    def launch(self, gpu: int, now_ns: int) -> None:
        if self.is_launched(gpu):
            self.once_more = self.steps + 1
            return
        self.launched[gpu] = self.steps + 1
        self.first_ns = now_ns if gpu == self.gpus[0] else self.first_ns


class VirtualNode:
    """GPUs with their tenants. `together`: scheduled as the arbiter does it; otherwise each GPU independently."""

    def __init__(self, count: int, tenants: dict[str, Tenant], *, together: bool = True) -> None:
        self.turns = {str(number): CoscheduledGpu() for number in range(count)}
        self.gangs = Gangs(self.turns)
        self.tenants = tenants
        self.now_ns = 0
        for key, tenant in tenants.items():
            for gpu in tenant.gpus:
                self._obey(gpu, self.turns[str(gpu)].join(key, tenant.given, 0))
                if together and (len(tenant.gpus) > 1 or tenant.group):
                    uuids = [str(gpu) for gpu in tenant.gpus]
                    self.gangs.join(key, str(gpu), 0, uuids=uuids, group=tenant.group)

    def run(self, milliseconds: int) -> None:
        until_ns = self.now_ns + milliseconds * MS
        while self.now_ns < until_ns:
            self.now_ns += TICK_NS
            for number, turns in self.turns.items():
                due_ns = turns.due_ns()
                if due_ns is not None and due_ns <= self.now_ns:
                    self._obey(int(number), turns.tick(self.now_ns))
                    self._settle()
            due_ns = self.gangs.due_ns(self.now_ns)
            if due_ns is not None and due_ns <= self.now_ns:
                self._settle()
            for key, tenant in self.tenants.items():
                self._act(key, tenant)
            self._compute()

    def _act(self, key: str, tenant: Tenant) -> None:
        for gpu in tenant.next_launches(self.now_ns):
            if gpu in tenant.open:
                tenant.launch(gpu, self.now_ns)
            elif tenant.asked_ns.setdefault(gpu, self.now_ns) == self.now_ns - TICK_NS:
                self._obey(gpu, self.turns[str(gpu)].want(key, self.now_ns))
                self._settle()
        for gpu in tenant.gpus:
            self._give_back_if_idle(key, tenant, gpu)
            seat = self.turns[str(gpu)].shares[key]
            if seat.phase is LeasePhase.REVOKED and tenant.again_ns and tenant.is_stuck():
                self._obey(gpu, self.turns[str(gpu)].closed(key, self.now_ns))
                self._settle()
            if seat.phase is not None and gpu not in tenant.open and not tenant.runs_on(gpu):
                self._obey(gpu, self.turns[str(gpu)].released(key, self.now_ns))
                self._settle()

    def _give_back_if_idle(self, key: str, tenant: Tenant, gpu: int) -> None:
        if gpu not in tenant.open or tenant.runs_on(gpu) or not self.turns[str(gpu)].contended(key):
            tenant.idle_ns.pop(gpu, None)
        elif self.now_ns >= tenant.idle_ns.setdefault(gpu, self.now_ns) + IDLE_NS:
            tenant.open.discard(gpu)

    def _compute(self) -> None:
        residents = [sum(tenant.runs_on(gpu) for tenant in self.tenants.values()) for gpu in range(len(self.turns))]
        together: dict[str, list[Tenant]] = {}
        for key, tenant in self.tenants.items():
            together.setdefault(tenant.meets or key, []).append(tenant)
        for ranks in together.values():
            if all(rank.is_launched(gpu) for rank in ranks for gpu in rank.gpus):
                running = [gpu for rank in ranks for gpu in rank.gpus if rank.runs_on(gpu)]
                ranks[0].done_ns += TICK_NS / max(residents[gpu] for gpu in running)
                if ranks[0].done_ns >= KERNEL_NS + ranks[0].tail_ns:
                    ranks[0].done_ns = 0
                    for rank in ranks:
                        rank.steps += 1

    def _settle(self) -> None:
        for _ in range(MAX_SETTLES):
            commands = self.gangs.settle(self.now_ns)
            if not commands:
                break
            for uuid, command in commands:
                self._obey(int(uuid), [command])
        else:
            raise BrokenLawError(f"there is no end of what is to be done at {self.now_ns}: {commands}")
        for turns in self.turns.values():
            turns.changed.clear()

    def _obey(self, gpu: int, commands: list[Command]) -> None:
        for command in commands:
            tenant = self.tenants[command.key]
            tenant.asked_ns.pop(gpu, None)
            if isinstance(command, Open):
                tenant.open.add(gpu)
            elif isinstance(command, Revoke):
                tenant.open.discard(gpu)
