"""Gangs: shares that are scheduled on several GPUs together. Pure: events and times in, commands out.

A share of several GPUs is a gang, and so are the shares of one group (`gpushare.io/group`) on this node.

    WAITING ─called→ CALLED ─all given back→ TURN ─over→ ENDING ─nothing runs on any→ WAITING

The kernels of a gang wait for each other across its GPUs. If it held only one of them, that GPU would be busy waiting.
So a gang gets all its GPUs or none: this is Ousterhout's coscheduling matrix (1982), with a column for each GPU.

The next gang is chosen for all GPUs at once: it may begin if it ranks before the current shares (`Account.standing`)
on each GPU that it uses. Then all these GPUs are reserved at once, so no two gangs block each other. Until then, and
during the turn on GPUs that the gang leaves idle (`gpu_share.IdleTime`), each GPU serves other shares one by one.

A turn may end in the middle of a collective. Then a running kernel waits for one that was not launched, because the
launching thread waits at a closed gate, perhaps at the gate of the very GPU where the kernel runs. So the gang may
launch there again for a moment, before other shares are served.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from deviceplugin.arbiter.scheduling import account
from deviceplugin.arbiter.scheduling.account import MILLISECOND_NS
from deviceplugin.arbiter.scheduling.coscheduled_gpu import CoscheduledGpu
from deviceplugin.arbiter.scheduling.gpu_share import Command, GpuShare, LeasePhase

# A gang does not need a GPU that it has not used for this long.
UNUSED_NS: Final = 1000 * MILLISECOND_NS
# After STUCK_NS, what was launched should have ended. Then the gang may launch for MEET_NS what that waits for.
STUCK_NS: Final = 3 * MILLISECOND_NS
MEET_NS: Final = 1 * MILLISECOND_NS
MAX_END_NS: Final = 100 * MILLISECOND_NS
# The longest time per turn that a gang does not pay while it waits for a GPU that it has not been given.
EXEMPT_NS: Final = 10 * MILLISECOND_NS
_DONE: Final = frozenset({None, LeasePhase.LATE})

Commands = list[tuple[str, Command]]  # with the UUID of the GPU


class Stage(enum.Enum):
    """The stage of a gang's turn."""

    WAITING = "waiting"
    CALLED = "called"
    TURN = "turn"
    ENDING = "ending"


@dataclasses.dataclass(slots=True)
class Gang:
    """A gang: its share on each GPU, and the state of its turn."""

    shares: dict[str, str] = dataclasses.field(default_factory=dict)
    used_ns: dict[str, int] = dataclasses.field(default_factory=dict)
    stage: Stage = Stage.WAITING
    reserved: list[str] = dataclasses.field(default_factory=list)  # the GPUs of its turn, in order
    waits_ns: int | None = None  # since when it waits
    ended_ns: int = 0
    resumed_ns: int = 0  # when it was last stopped, or resumed for a moment
    exempt_until_ns: int = 0
    exempt: bool = False  # whether its shares pay nothing now


class Gangs:
    """All gangs of a node. `gpus`: the scheduler of each GPU, by UUID. Call `settle` after every event there."""

    def __init__(self, gpus: Mapping[str, CoscheduledGpu]) -> None:
        self._gpus = gpus
        self.by_name: dict[str, Gang] = {}
        self._names: dict[str, str] = {}  # gang names by share
        self._at: collections.defaultdict[str, set[str]] = collections.defaultdict(set)  # gang names by GPU

    def join(self, key: str, uuid: str, now_ns: int, *, uuids: Sequence[str], group: str = "") -> None:
        """Add a share, at this GPU, to the gang of its GPUs (`uuids`) and its group. It counts as about to use the GPU.

        Shares of a group that have a GPU in common are separate gangs and take turns there.
        """
        name = self._names.get(key)
        if name is None:
            there = self.by_name[group].shares if group in self.by_name else {}
            name = group if group and there.keys().isdisjoint(uuids) else key
            self._names[key] = name
        gang = self.by_name.setdefault(name, Gang())
        if uuid in gang.shares:
            return
        gang.shares[uuid] = key
        gang.used_ns[uuid] = now_ns
        self._at[uuid].add(name)
        self._gpus[uuid].join_gang(key, now_ns)

    def remove(self, key: str, uuid: str) -> None:
        name = self._names.get(key, "")
        gang = self.by_name.get(name)
        if gang is None or gang.shares.get(uuid) != key:
            return
        del gang.shares[uuid], gang.used_ns[uuid]
        self._at[uuid].discard(name)
        if uuid in gang.reserved:
            gang.reserved.remove(uuid)
        if key not in gang.shares.values():
            del self._names[key]
        if not gang.shares:
            del self.by_name[name]

    def settle(self, now_ns: int) -> Commands:
        """Return the next commands. Execute them and call again, until there are none."""
        commands: Commands = []
        for _ in range(len(Stage) * len(self.by_name)):
            called = self._next(now_ns)
            if called is not None:
                called.stage, called.reserved = Stage.CALLED, self._uses(called, now_ns)
                for uuid in called.reserved:
                    self._gpus[uuid].undecided = True
            going_on = called is not None
            for gang in self._concerned():
                stage = gang.stage
                self._update_use(gang, now_ns)
                commands += _STEPS[stage](self, gang, now_ns)
                going_on = going_on or gang.stage is not stage
            if not going_on:
                break
        for uuid, gpu in self._gpus.items():
            if gpu.undecided:
                commands += [(uuid, command) for command in gpu.decide(now_ns)]
        return commands

    def due_ns(self, now_ns: int) -> int | None:
        times: list[int] = []
        for gang in self.by_name.values():
            if gang.stage is Stage.ENDING:  # when to resume members, and when to stop those that were resumed
                times += [at_ns for uuid in gang.reserved if (at_ns := self._resume_ns(gang, uuid)) is not None]
                is_resumed = any(self._is_resumed(gang, uuid) for uuid in gang.reserved)
                times += [gang.resumed_ns + MEET_NS] if is_resumed else []
            times += [gang.exempt_until_ns] if gang.exempt and gang.exempt_until_ns > now_ns else []
        return min(times, default=None)

    def _concerned(self) -> list[Gang]:
        """Return the gangs on whose GPUs something has changed, and those that are about to begin or end."""
        changed = [(uuid, gpu.changed) for uuid, gpu in self._gpus.items() if gpu.undecided or gpu.changed]
        # Only its own shares concern a waiting gang. Others on its GPUs matter once it is next.
        names = {
            name
            for uuid, keys in changed
            for name in self._at.get(uuid, ())
            if self.by_name[name].stage is not Stage.WAITING or self.by_name[name].shares[uuid] in keys
        }
        moving = {Stage.CALLED, Stage.ENDING}
        return [gang for name, gang in self.by_name.items() if name in names or gang.stage in moving or gang.exempt]

    def _next(self, now_ns: int) -> Gang | None:
        """Return the first waiting gang that may begin; None if no turn is over on any GPU."""
        vacant = {uuid for uuid in self._gpus if self._is_vacant(uuid)}
        if not vacant:
            return None
        waiting = [
            gang
            for gang in self.by_name.values()
            if gang.stage is Stage.WAITING and not vacant.isdisjoint(self._uses(gang, now_ns)) and self._asks(gang)
        ]
        able = [gang for gang in waiting if self._may_begin(gang, now_ns)]
        return max(able, key=lambda gang: (self._owed_ns(gang, now_ns), -(gang.waits_ns or now_ns)), default=None)

    def _is_vacant(self, uuid: str) -> bool:
        owners = self._owners(uuid)
        if not owners:
            gpu = self._gpus[uuid]
            return gpu.holder is None or gpu.is_over(gpu.holder)
        return all(
            owner.stage is Stage.ENDING or any(self._gpus[uuid].is_over(owner.shares[uuid]) for uuid in owner.reserved)
            for owner in owners
        )

    def _owners(self, uuid: str) -> list[Gang]:
        """Return the gang that has its turn on this GPU, and the gang that has been called to be next."""
        there = (self.by_name[name] for name in self._at.get(uuid, ()))
        return [gang for gang in there if uuid in gang.reserved]

    def _may_begin(self, gang: Gang, now_ns: int) -> bool:
        """Whether the gang ranks before the current shares on each GPU that it uses."""
        return all(
            self._yields(uuid, self._standing(gang, uuid, now_ns), now_ns) for uuid in self._uses(gang, now_ns)
        ) and all(self._share(gang, uuid).account.eligible() for uuid in self._uses(gang, now_ns))

    def _yields(self, uuid: str, standing: account.Standing, now_ns: int) -> bool:
        gpu, owners = self._gpus[uuid], self._owners(uuid)
        alone = [gpu.waiting.first(now_ns)]
        if not owners and gpu.holder is not None and gpu.shares[gpu.holder].phase is LeasePhase.OPEN:
            alone.append(gpu.holder)
        return all(key is None or gpu.standing(key, now_ns) <= standing for key in alone) and all(
            owner.stage is Stage.ENDING
            or (owner.stage is Stage.TURN and self._standing(owner, uuid, now_ns) <= standing)
            for owner in owners
        )

    def _standing(self, gang: Gang, uuid: str, now_ns: int) -> account.Standing:
        """Return the gang's rank on this GPU. It is owed as little as on the GPU where it has had most.

        The latency class has no precedence here: it would interrupt others on all GPUs because of a debt on one.
        """
        standing = self._gpus[uuid].standing(gang.shares[uuid], now_ns)
        if len(gang.shares) == 1:
            return standing
        *_, behind_ns = standing
        return False, self._owed_ns(gang, now_ns), behind_ns

    def _owed_ns(self, gang: Gang, now_ns: int) -> float:
        standings = (self._gpus[uuid].standing(gang.shares[uuid], now_ns) for uuid in self._uses(gang, now_ns))
        return min((owed_ns for _, owed_ns, _ in standings), default=0.0)

    def _uses(self, gang: Gang, now_ns: int) -> list[str]:
        """Return the GPUs that the gang will probably use, in order: those that it used before it had to wait."""
        until_ns = now_ns if gang.waits_ns is None else gang.waits_ns
        return sorted(uuid for uuid, used_ns in gang.used_ns.items() if until_ns < used_ns + UNUSED_NS)

    def _share(self, gang: Gang, uuid: str) -> GpuShare:
        return self._gpus[uuid].shares[gang.shares[uuid]]

    def _shares(self, gang: Gang) -> Iterator[GpuShare]:
        return (self._share(gang, uuid) for uuid in gang.shares)

    def _asks(self, gang: Gang) -> bool:
        return any(share.asked for share in self._shares(gang))

    def _update_use(self, gang: Gang, now_ns: int) -> None:
        """Update which GPUs the gang uses, and exempt it from charges while it waits for a GPU that is withheld."""
        for uuid in gang.shares:
            if _is_at_work(self._share(gang, uuid)):
                gang.used_ns[uuid] = now_ns
        if gang.stage is not Stage.WAITING or not self._asks(gang):
            gang.waits_ns = None
        elif gang.waits_ns is None:
            gang.waits_ns = now_ns
        throttled = any(share.asked and share.phase is None for share in self._shares(gang))
        gang.exempt = throttled and now_ns < gang.exempt_until_ns
        for uuid, key in gang.shares.items():
            self._gpus[uuid].set_exempt(key, now_ns, exempt=gang.exempt)

    def _wait(self, gang: Gang, now_ns: int) -> Commands:
        held = [uuid for uuid, key in gang.shares.items() if self._gpus[uuid].holder == key]
        if held:  # since before this arbiter started
            gang.stage, gang.reserved = Stage.CALLED, sorted(held)
            return []
        expected = self._uses(gang, now_ns) if self._asks(gang) else []
        commands: Commands = []
        for uuid, key in gang.shares.items():
            if (uuid in expected) != self._share(gang, uuid).account.wanting:
                wanted = self._gpus[uuid].expect(key, now_ns, wanting=uuid in expected)
                commands += [(uuid, command) for command in wanted]
        return commands

    def _begin(self, gang: Gang, now_ns: int) -> Commands:
        """Begin the turn once all its GPUs have been given back."""
        if not any(map(_is_at_work, self._shares(gang))):
            return self._free(gang, now_ns)
        commands: Commands = []
        for uuid in gang.reserved:
            if self._gpus[uuid].reserved_for is None:
                commands += [(uuid, command) for command in self._gpus[uuid].reserve(gang.shares[uuid], now_ns)]
        keys = gang.shares
        if all(self._gpus[uuid].reserved_for == keys[uuid] and self._is_free(gang, uuid) for uuid in gang.reserved):
            gang.stage, gang.exempt_until_ns = Stage.TURN, now_ns + EXEMPT_NS
            commands += [(uuid, command) for uuid in gang.reserved for command in self._gpus[uuid].begin(now_ns)]
        return commands

    def _is_free(self, gang: Gang, uuid: str) -> bool:
        return self._gpus[uuid].holder in {None, gang.shares[uuid]}

    def _continue(self, gang: Gang, now_ns: int) -> Commands:
        if not any(map(_is_at_work, self._shares(gang))):
            return self._free(gang, now_ns)
        more = [
            uuid
            for uuid, key in gang.shares.items()
            if self._share(gang, uuid).asked and uuid not in gang.reserved and self._gpus[uuid].holder != key
        ]
        # A GPU that it has not used lately. If the gang cannot have it at once, it waits for all of them again.
        had = all(not self._owners(uuid) and self._share(gang, uuid).account.eligible() for uuid in more)
        if not had or self._is_over(gang, now_ns):
            gang.stage, gang.ended_ns, gang.resumed_ns = Stage.ENDING, now_ns, now_ns
            gang.exempt_until_ns = now_ns + EXEMPT_NS
            return [(uuid, command) for uuid in gang.reserved for command in self._gpus[uuid].stop(now_ns)]
        gang.reserved = sorted({*gang.reserved, *more})
        commands: Commands = []
        for uuid in gang.reserved:
            gpu, key = self._gpus[uuid], gang.shares[uuid]
            gpu.extend_turn(now_ns)
            wanted = gpu.reserve(key, now_ns) if uuid in more else []
            wanted += gpu.begin(now_ns) if gpu.blocked and self._is_free(gang, uuid) else []
            commands += [(uuid, command) for command in wanted]
        return commands

    def _is_over(self, gang: Gang, now_ns: int) -> bool:
        """Whether the turn ends: by its limit, for another gang that was called, or by length for a single share."""
        kept = [(self._gpus[uuid], gang.shares[uuid]) for uuid in gang.reserved]
        for gpu, key in kept:
            account = gpu.shares[key].account
            account.pass_time(now_ns)
            if (gpu.is_over(key) or gpu.shares[key].asked) and account.lasts_ns() == 0:
                return True
        if any(len(self._owners(uuid)) > 1 for uuid in gang.reserved):
            return True
        if not any(gpu.is_over(key) for gpu, key in kept):
            return False
        return any(
            (first := self._gpus[uuid].waiting.first(now_ns)) is not None
            and self._gpus[uuid].standing(first, now_ns) >= self._standing(gang, uuid, now_ns)
            for uuid in gang.reserved
        )

    def _drain(self, gang: Gang, now_ns: int) -> Commands:
        if all(share.phase in _DONE for share in self._shares(gang)):
            return self._free(gang, now_ns)
        resumed = [uuid for uuid in gang.reserved if self._is_resumed(gang, uuid)]
        if resumed and now_ns >= gang.resumed_ns + MEET_NS:
            gang.resumed_ns = now_ns
            since_ns = gang.ended_ns
            return [(uuid, command) for uuid in resumed for command in self._gpus[uuid].stop(now_ns, since_ns=since_ns)]
        commands: Commands = []
        for uuid in gang.reserved:
            at_ns = self._resume_ns(gang, uuid)
            if at_ns is not None and at_ns <= now_ns:
                lent = self._gpus[uuid].is_lent
                wanted = self._gpus[uuid].take_back(now_ns) if lent else self._gpus[uuid].resume(now_ns)
                gang.resumed_ns = gang.resumed_ns if lent else now_ns
                commands += [(uuid, command) for command in wanted]
        return commands

    def _is_resumed(self, gang: Gang, uuid: str) -> bool:
        return self._share(gang, uuid).phase is LeasePhase.OPEN

    def _resume_ns(self, gang: Gang, uuid: str) -> int | None:
        """Return when to let the gang launch there once more; None if it has not asked to, or drains as expected.

        Its work should have ended by then, and probably waits for the launch, even on the GPU where it runs. Once one
        member is resumed, the others follow as soon as they ask.
        """
        share, gpu = self._share(gang, uuid), self._gpus[uuid]
        if not share.asked or share.phase not in {None, LeasePhase.DRAINING}:
            return None
        if share.phase is None and gpu.holder is not None and not gpu.is_lent:
            return None
        if share.phase is None and any(self._is_resumed(gang, other) for other in gang.reserved):
            return gang.resumed_ns
        at_ns = max(gang.resumed_ns, share.closed_ns if share.phase is LeasePhase.DRAINING else 0) + STUCK_NS
        return at_ns if at_ns < gang.ended_ns + MAX_END_NS else None

    def _free(self, gang: Gang, now_ns: int) -> Commands:
        """End the turn. The next share on these GPUs is chosen once all of them are free."""
        for uuid in gang.reserved:
            if self._gpus[uuid].reserved_for == gang.shares[uuid]:
                self._gpus[uuid].give_back(now_ns)
        gang.reserved, gang.stage = [], Stage.WAITING
        return []


def _is_at_work(share: GpuShare) -> bool:
    """Whether the share has something to launch, or has its turn."""
    return share.asked or share.phase not in _DONE


_STEPS: Final[Mapping[Stage, Callable[[Gangs, Gang, int], Commands]]] = {
    Stage.WAITING: Gangs._wait,
    Stage.CALLED: Gangs._begin,
    Stage.TURN: Gangs._continue,
    Stage.ENDING: Gangs._drain,
}
