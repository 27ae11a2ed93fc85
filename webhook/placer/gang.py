"""Gangs: the gated pods there are → units that are placed whole or not at all, and who has to wait before that. Pure.

A pod by itself is a unit of one. The members of a group that run already count, so that one that is made anew joins
them; and of those that have succeeded the siblings by owner, but not the ones of yesterday's run of the same name.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors, pod
from webhook.placer import queue
from webhook.pods import gate_reason
from webhook.pods.mutation import Placed

PodJson = Mapping[str, Any]
Group = tuple[str, str]  # namespace, name
WHOLE_PERCENT: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """Placed together, or not at all; `group` is empty for a pod by itself."""

    members: tuple[PodJson, ...]
    group: str = ""
    # Its place in the queue: its least important member's priority, and since when it is complete.
    order: queue.Order = dataclasses.field(init=False, compare=False)
    namespace: str = dataclasses.field(init=False, compare=False)
    uids: tuple[str, ...] = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Find out what is asked for far more often than a unit is made."""
        behind, created, name = zip(*(queue.order(one) for one in self.members), strict=True)
        object.__setattr__(self, "order", (max(behind), max(created), max(name)))
        object.__setattr__(self, "namespace", pod.namespaced_name(self.members[0])[0])
        object.__setattr__(self, "uids", tuple(map(pod.uid, self.members)))


@dataclasses.dataclass(frozen=True, slots=True)
class Arranged:
    """Units in the order of their turns, and who has none yet, with the sentence that says why."""

    units: tuple[Unit, ...]
    held_back: tuple[tuple[PodJson, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """What was found out about one pod that waits; `alone`: as a unit by itself."""

    pod: PodJson
    alone: Unit
    group: Group | None
    foreign: tuple[str, ...]


class Arranger:
    """Arranges again and again: what it has found out about a pod holds for as long as that is the same object."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}  # by uid

    def arrange(
        self,
        gated: Mapping[str, PodJson],
        members: Mapping[Group, Mapping[str, PodJson]],
        *,
        opened: Collection[str] = (),
    ) -> Arranged:
        """See `arrange`; `gated`: by uid who waits, `members`: by uid who is of each group, and does not leave."""
        before, self._known = self._known, {}
        waiting: list[_Known] = []
        for uid, one in gated.items():
            known = before.get(uid)
            if known is None or known.pod is not one:
                known = _Known(one, Unit((one,)), group_of(one), gate_reason.foreign_gates(one))
            self._known[uid] = known
            if uid not in opened:
                waiting.append(known)
        waiting.sort(key=lambda known: known.alone.order)
        units: list[Unit] = []
        held_back: list[tuple[PodJson, str]] = []
        ready: dict[Group, list[PodJson]] = collections.defaultdict(list)
        for known in waiting:
            if known.foreign:
                held_back.append((known.pod, gate_reason.for_gates(known.foreign)))
            elif known.group is None:
                units.append(known.alone)
            else:
                ready[known.group].append(known.pod)
        uids = {pod.uid(known.pod) for known in waiting} if ready else frozenset()
        for group, candidates in ready.items():
            found, back = _arrange_group(group, candidates, list(members[group].values()), uids)
            units += found
            held_back += back
        units.sort(key=lambda unit: unit.order)
        return Arranged(tuple(units), tuple(held_back))


def arrange(pods: Iterable[PodJson], *, opened: Collection[str] = ()) -> Arranged:
    """Who may have a turn; `opened`: uids of pods whose gate is open although this copy of them does not show it."""
    gated: dict[str, PodJson] = {}
    members: dict[Group, dict[str, PodJson]] = collections.defaultdict(dict)
    for one in pods:
        if queue.waits(one):
            gated[pod.uid(one)] = one
        if (group := member_of(one)) is not None:
            members[group][pod.uid(one)] = one
    return Arranger().arrange(gated, members, opened=opened)


def apart(group: str, placed: Iterable[Placed]) -> str:
    """What to say of a group that was placed where its kernels would wait for each other's turns; empty for nothing.

    Shares of one node have their turns together. Nobody does that over several nodes.
    """
    nodes = {one.node for one in placed}
    whole = all(share.request_percent >= WHOLE_PERCENT for one in placed for share in one.shares)
    if len(nodes) < 2 or whole:
        return ""
    return (
        f"its group {errors.quoted(group)} shares GPUs on {len(nodes)} nodes: each node gives turns by itself, so "
        f"kernels that wait for those of another node waste most of theirs. Ask for whole GPUs ({contract.REQUEST}: "
        '"1"), or for so few that one node has them'
    )


def group_of(one: PodJson) -> Group | None:
    """The gang it belongs to; None for a pod by itself."""
    annotations = pod.annotations_of(one)
    if contract.GROUP not in annotations:
        return None
    name, size = annotations.get(contract.GROUP, "").strip(), _size(one)
    return (pod.namespaced_name(one)[0], name) if name and size > 1 else None


def member_of(one: PodJson) -> Group | None:
    """The gang that it counts in: who leaves counts in none."""
    return None if (one.get("metadata") or {}).get("deletionTimestamp") else group_of(one)


def _arrange_group(
    group: Group, ready: Sequence[PodJson], members: Sequence[PodJson], waiting: Collection[str]
) -> tuple[list[Unit], list[tuple[PodJson, str]]]:
    name = errors.quoted(group[1])
    living = [one for one in members if not pod.is_terminal(one)]
    sizes = {_size(one): one for one in reversed(living)}
    if len(sizes) > 1:
        (first, one), (second, other) = sorted(sizes.items())[:2]
        said = (
            f"its group {name} has no one size: {_name(one)} says {first} and {_name(other)} says {second}; "
            f"delete the pods with the wrong {contract.GROUP_SIZE} and create them anew"
        )
        return [], [(waits_too, said) for waits_too in ready]
    size = _size(ready[0])
    owners = {owner for one in ready if (owner := owner_uid(one))}
    placed = [one for one in living if pod.uid(one) not in waiting]
    placed += [one for one in members if _has_succeeded(one) and owner_uid(one) in owners]
    if len(placed) >= size:
        return [Unit((one,)) for one in ready], []
    needed = size - len(placed)
    if len(ready) < needed:
        said = _incomplete(name, size, have=len(placed) + len(ready), others=len(living) - len(placed) - len(ready))
        return [], [(one, said) for one in ready]
    extra = f"its group {name} has {size} pods without this one: it gets its turn once they are placed"
    return [Unit(tuple(ready[:needed]), group[1])], [(one, extra) for one in ready[needed:]]


def _incomplete(name: str, size: int, *, have: int, others: int) -> str:
    if others > 0 and have + others >= size:
        return f"waits for its group {name}: {others} of its {size} pods wait for somebody else's scheduling gate"
    return f"waits for {size - have} more of its group {name} (have {have} of {size})"


def owner_uid(one: PodJson) -> str:
    """The uid of the controller that made it, or empty."""
    for owner in (one.get("metadata") or {}).get("ownerReferences") or []:
        if owner.get("controller"):
            return str(owner.get("uid", ""))
    return ""


def _has_succeeded(one: PodJson) -> bool:
    return (one.get("status") or {}).get("phase") == "Succeeded"


def _size(one: PodJson) -> int:
    text = pod.annotations_of(one).get(contract.GROUP_SIZE, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else 0


def _name(one: PodJson) -> str:
    return pod.namespaced_name(one)[1]
