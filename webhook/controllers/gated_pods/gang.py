"""Gangs: the gated pods there are → units that are placed whole or not at all, and who has to wait before that. Pure.

A pod by itself is a unit of one. The members of a group that run already count, so that one that is recreated joins
them; and of those that have succeeded the siblings by owner, but not the ones of yesterday's run of the same name.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from gpushare import contract, errors
from webhook.controllers import queue
from webhook.pods import gate_reason
from webhook.pods.mutation import Placed
from webhook.pods.stored_pod import Pod

Group = tuple[str, str]  # namespace, name
WHOLE_PERCENT: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """Placed together, or not at all; `group` is empty for a pod by itself."""

    members: tuple[Pod, ...]
    group: str = ""
    # Its place in the queue: its least important member's priority, and since when it is complete.
    order: queue.Order = dataclasses.field(init=False, compare=False)
    namespace: str = dataclasses.field(init=False, compare=False)
    uids: tuple[str, ...] = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Find out what is asked for far more often than a unit is made."""
        behind, created, name = zip(*map(queue.order, self.members), strict=True)
        object.__setattr__(self, "order", (max(behind), max(created), max(name)))
        object.__setattr__(self, "namespace", self.members[0].ref.namespace)
        object.__setattr__(self, "uids", tuple(pod.ref.uid for pod in self.members))


@dataclasses.dataclass(frozen=True, slots=True)
class Arranged:
    """Units in the order of their turns, and who has none yet, with the sentence that says why."""

    units: tuple[Unit, ...]
    held_back: tuple[tuple[Pod, str], ...]


class Arranger:
    """Arranges again and again: a unit of one pod holds for as long as that is the same object."""

    def __init__(self) -> None:
        self._alone: dict[str, Unit] = {}  # by uid

    def arrange(
        self,
        gated: Mapping[str, Pod],
        members: Mapping[Group, Mapping[str, Pod]],
        *,
        opened: Collection[str] = (),
    ) -> Arranged:
        """See `arrange`; `gated`: by uid who waits, `members`: by uid who is of each group, and does not leave."""
        before, self._alone = self._alone, {}
        waiting: list[Unit] = []
        for uid, pod in gated.items():
            alone = before.get(uid)
            if alone is None or alone.members[0] is not pod:
                alone = Unit((pod,))
            self._alone[uid] = alone
            if uid not in opened:
                waiting.append(alone)
        waiting.sort(key=lambda alone: alone.order)
        units: list[Unit] = []
        held_back: list[tuple[Pod, str]] = []
        ready: dict[Group, list[Pod]] = collections.defaultdict(list)
        for alone in waiting:
            (pod,) = alone.members
            if pod.foreign_gates:
                held_back.append((pod, gate_reason.for_gates(pod.foreign_gates)))
            elif not pod.group:
                units.append(alone)
            else:
                ready[pod.ref.namespace, pod.group].append(pod)
        uids = {uid for alone in waiting for uid in alone.uids} if ready else frozenset()
        for group, candidates in ready.items():
            whole, back = _arrange_group(group, candidates, list(members[group].values()), uids)
            units += whole
            held_back += back
        units.sort(key=lambda unit: unit.order)
        return Arranged(tuple(units), tuple(held_back))


def arrange(pods: Iterable[Pod], *, opened: Collection[str] = ()) -> Arranged:
    """Who may have a turn; `opened`: uids of pods whose gate is open although this copy of them does not show it."""
    gated: dict[str, Pod] = {}
    members: dict[Group, dict[str, Pod]] = collections.defaultdict(dict)
    for pod in pods:
        if pod.waits:
            gated[pod.ref.uid] = pod
        if (group := member_of(pod)) is not None:
            members[group][pod.ref.uid] = pod
    return Arranger().arrange(gated, members, opened=opened)


def apart(group: str, placed: Iterable[Placed]) -> str:
    """What to say of a group that was placed where its kernels would wait for each other's turns; empty for nothing.

    Shares of one node have their turns together. Nobody does that over several nodes.
    """
    nodes = {member.node for member in placed}
    whole = all(share.request_percent >= WHOLE_PERCENT for member in placed for share in member.shares)
    if len(nodes) < 2 or whole:
        return ""
    return (
        f"its group {errors.quoted(group)} shares GPUs on {len(nodes)} nodes: each node gives turns by itself, so "
        f"kernels that wait for those of another node waste most of theirs. Ask for whole GPUs ({contract.REQUEST}: "
        '"1"), or for so few that one node has them'
    )


def member_of(pod: Pod) -> Group | None:
    """The gang that it counts in: None for a pod by itself, and for who leaves."""
    return (pod.ref.namespace, pod.group) if pod.group and not pod.leaves else None


def _arrange_group(
    group: Group, ready: Sequence[Pod], members: Sequence[Pod], waiting: Collection[str]
) -> tuple[list[Unit], list[tuple[Pod, str]]]:
    name = errors.quoted(group[1])
    living = [pod for pod in members if not pod.has_ended]
    sizes = {pod.group_size: pod.ref.name for pod in reversed(living)}
    if len(sizes) > 1:
        (first, pod), (second, other) = sorted(sizes.items())[:2]
        said = (
            f"its group {name} has no one size: {pod} says {first} and {other} says {second}; "
            f"delete the pods with the wrong {contract.GROUP_SIZE} and recreate them"
        )
        return [], [(pod, said) for pod in ready]
    size = ready[0].group_size
    owners = {pod.controller.uid for pod in ready if pod.controller is not None}
    placed = [pod for pod in living if pod.ref.uid not in waiting]
    placed += [pod for pod in members if pod.phase == "Succeeded" and pod.controller and pod.controller.uid in owners]
    if len(placed) >= size:
        return [Unit((pod,)) for pod in ready], []
    needed = size - len(placed)
    if len(ready) < needed:
        said = _incomplete(name, size, have=len(placed) + len(ready), others=len(living) - len(placed) - len(ready))
        return [], [(pod, said) for pod in ready]
    extra = f"its group {name} has {size} pods without this one: it gets its turn once they are placed"
    return [Unit(tuple(ready[:needed]), group[1])], [(pod, extra) for pod in ready[needed:]]


def _incomplete(name: str, size: int, *, have: int, others: int) -> str:
    if others > 0 and have + others >= size:
        return f"waits for its group {name}: {others} of its {size} pods wait for somebody else's scheduling gate"
    return f"waits for {size - have} more of its group {name} (have {have} of {size})"
