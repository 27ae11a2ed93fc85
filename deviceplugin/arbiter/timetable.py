"""When each share launches while no arbiter runs: its slot in every 100 ms, as its limits page says. Pure.

On each GPU the slots follow one another, in thousandths of the period. A share gets at least its request; the rest is
split by request, up to the limits. A share without a request counts as one percent, but all of these together take at
most a twentieth from the others. The latency class makes no difference: each share has one slot.

A share of several GPUs has the same slot on all of them; otherwise its kernels would spend most of the time waiting for
each other. So these shares are placed first, those with most GPUs before others, each at the first time that is free on
all its GPUs. The other shares fill the gaps. This always works if the GPU sets of any two shares are nested or
disjoint. If they overlap otherwise, a common time that leaves room for the others may not exist. Such a share has an
independent slot on each of its GPUs.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deviceplugin.arbiter.tenant import Tenant

PERIOD: Final = 1000
UNASKED: Final = 10  # for a share without a request
UNASKED_TOGETHER: Final = 50  # for all shares without a request


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchSlot:
    """The begin and length of a slot, in thousandths of the period. Length 0 means no slot."""

    begin_permille: int = 0
    permille: int = 0


NO_TURN: Final = LaunchSlot()


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """The amounts of one share on one GPU, in thousandths."""

    key: str
    least: int
    most: int
    weight: int


class _GpuTimetable:
    """One GPU: the shares that wait for a slot, and the slots assigned so far."""

    def __init__(self, shares: Mapping[str, tuple[int, int]]) -> None:
        """shares: request and limit of each share, in percent."""
        unasked = sum(request == 0 for request, _ in shares.values())
        unasked_permille = max(1, min(UNASKED, UNASKED_TOGETHER // unasked)) if unasked else 0
        asked = sum(10 * request for request, _ in shares.values())
        room = max(0, PERIOD - unasked * unasked_permille)
        self.waiting: dict[str, _Part] = {}
        for key, (request, limit) in sorted(shares.items()):
            least = 10 * request * min(room, asked) // asked if request else unasked_permille
            most = max(1, 10 * limit)
            self.waiting[key] = _Part(key, min(max(1, least), most), most, max(1, request))
        if sum(part.least for part in self.waiting.values()) > PERIOD:
            self.waiting = {}  # too many shares for thousandths
        self.turns: dict[str, LaunchSlot] = {}

    def gaps(self) -> list[LaunchSlot]:
        slots, at = [], 0
        for turn in sorted(self.turns.values(), key=lambda slot: slot.begin_permille):
            if turn.begin_permille > at:
                slots.append(LaunchSlot(at, turn.begin_permille - at))
            at = turn.begin_permille + turn.permille
        return [*slots, *([LaunchSlot(at, PERIOD - at)] if at < PERIOD else [])]

    def give(self, key: str, turn: LaunchSlot) -> bool:
        """Assign the slot if the waiting shares still have room next to it. Return whether it was assigned."""
        part = self.waiting.pop(key)
        self.turns[key] = turn
        if self._filled() is not None:
            return True
        self.take(key, part)
        return False

    def take(self, key: str, part: _Part) -> None:
        del self.turns[key]
        self.waiting[key] = part

    def fill(self) -> None:
        for gap, parts in self._filled() or ():
            at = gap.begin_permille
            for key, length in sorted(_divided(gap.permille, parts).items()):
                self.turns[key] = LaunchSlot(at, length)
                at += length

    def _filled(self) -> list[tuple[LaunchSlot, list[_Part]]] | None:
        """Distribute the waiting shares, largest first, to the gaps with most room. Return None if they do not fit."""
        filled: list[tuple[LaunchSlot, list[_Part]]] = [(gap, []) for gap in self.gaps()]
        for part in sorted(self.waiting.values(), key=lambda waiting: (-waiting.least, waiting.key)):
            if not filled:
                return None
            gap, parts = max(filled, key=lambda each: each[0].permille - sum(other.least for other in each[1]))
            if gap.permille < part.least + sum(other.least for other in parts):
                return None
            parts.append(part)
        return filled


def timetable(tenants: Iterable[Tenant]) -> Mapping[str, tuple[LaunchSlot, ...]]:
    """Return each share's slots by key, by GPU in the order of its grants. The result depends only on the tenants."""
    shares = {tenant.key: tenant for tenant in tenants}
    percents = collections.defaultdict[str, dict[str, tuple[int, int]]](dict)
    for key, tenant in shares.items():
        for grant in tenant.grants:
            percents[grant.uuid][key] = (grant.request_percent, grant.limit_percent)
    gpus = {uuid: _GpuTimetable(of) for uuid, of in percents.items()}
    alike = {uuid: _divided(PERIOD, gpu.waiting.values()) for uuid, gpu in gpus.items()}
    for key, owner in sorted(shares.items(), key=lambda item: (-len(item[1].grants), item[0])):
        uuids = [grant.uuid for grant in owner.grants]
        if len(uuids) > 1 and all(key in gpus[uuid].waiting for uuid in uuids):
            own = [gpus[uuid] for uuid in uuids]
            lengths = (min(alike[uuid][key] for uuid in uuids), min(gpu.waiting[key].least for gpu in own))
            for length in lengths:
                begin = _common([gpu.gaps() for gpu in own], length)
                if begin is not None and _is_granted(key, own, LaunchSlot(begin, length)):
                    break
    for gpu in gpus.values():
        gpu.fill()
    return {
        key: tuple(gpus[grant.uuid].turns.get(key, NO_TURN) for grant in tenant.grants)
        for key, tenant in shares.items()
    }


def _is_granted(key: str, gpus: Sequence[_GpuTimetable], turn: LaunchSlot) -> bool:
    before = [gpu.waiting[key] for gpu in gpus]
    for number, gpu in enumerate(gpus):
        if not gpu.give(key, turn):
            for other, part in zip(gpus[:number], before, strict=False):
                other.take(key, part)
            return False
    return True


def _common(gaps: Sequence[Sequence[LaunchSlot]], length: int) -> int | None:
    """Return the first time from which `length` is free on all GPUs, or None."""

    def is_free(begin: int, for_gpu: Sequence[LaunchSlot]) -> bool:
        ends = ((gap.begin_permille, gap.begin_permille + gap.permille) for gap in for_gpu)
        return any(first <= begin and begin + length <= end for first, end in ends)

    begins = sorted({gap.begin_permille for for_gpu in gaps for gap in for_gpu})
    return next((begin for begin in begins if all(is_free(begin, for_gpu) for for_gpu in gaps)), None)


def _divided(length: int, parts: Iterable[_Part]) -> dict[str, int]:
    """Split `length` among the shares by weight, within their limits. Return the lengths by key."""
    having = {part.key: part.least for part in parts}
    growing = [part for part in parts if part.least < part.most]
    left = length - sum(having.values())
    while left > 0 and growing:
        shared, weight = left, sum(part.weight for part in growing)
        for part in growing:
            # The first shares get the remainder of the division.
            more = min(max(1, shared * part.weight // weight), part.most - having[part.key], left)
            having[part.key] += more
            left -= more
        growing = [part for part in growing if having[part.key] < part.most]
    return having
