"""Gangs: groups gated pods into units that are placed together or not at all, and holds back incomplete ones. Pure.

A pod without a group is a unit of one. Running members of a group count, so a recreated pod joins them. Members that
have succeeded count if they have the same owner, which excludes an earlier run of the same name.
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
    """Pods that are placed together; `group` is empty for a single pod.

    order: the unit's place in the queue, by its lowest priority and the creation of its last member.
    """

    members: tuple[Pod, ...]
    group: str = ""
    order: queue.Order = dataclasses.field(init=False, compare=False)
    namespace: str = dataclasses.field(init=False, compare=False)
    uids: tuple[str, ...] = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the other fields once: they are read far more often than units are made."""
        behind, created, name = zip(*map(queue.order, self.members), strict=True)
        object.__setattr__(self, "order", (max(behind), max(created), max(name)))
        object.__setattr__(self, "namespace", self.members[0].ref.namespace)
        object.__setattr__(self, "uids", tuple(pod.ref.uid for pod in self.members))


@dataclasses.dataclass(frozen=True, slots=True)
class Arranged:
    """Units in the order of the queue, and the pods that get no turn yet, each with the reason."""

    units: tuple[Unit, ...]
    held_back: tuple[tuple[Pod, str], ...]


class Arranger:
    """Arranges pods again in each round, and reuses the units of single pods that have not changed."""

    def __init__(self) -> None:
        self._single: dict[str, Unit] = {}  # by UID

    def arrange(
        self,
        gated: Mapping[str, Pod],
        members: Mapping[Group, Mapping[str, Pod]],
        *,
        ungated: Collection[str] = (),
    ) -> Arranged:
        """Group waiting pods into units.

        gated: waiting pods by UID. members: pods of each gang by UID, without those that are being deleted. ungated:
        UIDs of pods that were ungated although our copy does not show it yet.
        """
        before, self._single = self._single, {}
        waiting: list[Unit] = []
        for uid, pod in gated.items():
            single = before.get(uid)
            if single is None or single.members[0] is not pod:
                single = Unit((pod,))
            self._single[uid] = single
            if uid not in ungated:
                waiting.append(single)
        waiting.sort(key=lambda unit: unit.order)
        units: list[Unit] = []
        held_back: list[tuple[Pod, str]] = []
        ready: dict[Group, list[Pod]] = collections.defaultdict(list)
        for single in waiting:
            (pod,) = single.members
            if pod.foreign_gates:
                held_back.append((pod, gate_reason.for_gates(pod.foreign_gates)))
            elif not pod.group:
                units.append(single)
            else:
                ready[pod.ref.namespace, pod.group].append(pod)
        uids = {uid for single in waiting for uid in single.uids} if ready else frozenset()
        for group, candidates in ready.items():
            complete, back = _arrange_group(group, candidates, list(members[group].values()), uids)
            units += complete
            held_back += back
        units.sort(key=lambda unit: unit.order)
        return Arranged(tuple(units), tuple(held_back))


def explain_apart(group: str, placed: Iterable[Placed]) -> str:
    """Return the warning for a gang with parts of GPUs on several nodes; empty for any other placement.

    The arbiter of one node runs the shares of a gang at the same time. Arbiters of different nodes do not coordinate.
    """
    nodes = {member.node for member in placed}
    whole = all(share.request_percent >= WHOLE_PERCENT for member in placed for share in member.shares)
    if len(nodes) < 2 or whole:
        return ""
    return (
        f"its group {errors.quoted(group)} shares GPUs on {len(nodes)} nodes, which do not take turns at "
        f"the same time: kernels that wait for a kernel on another node waste most of their turns. Request whole GPUs "
        f'({contract.REQUEST}: "1"), or few enough GPUs to fit on one node'
    )


def group_of(pod: Pod) -> Group | None:
    """Return the gang in which the pod counts; None for a single pod, and for one that is being deleted."""
    return (pod.ref.namespace, pod.group) if pod.group and not pod.leaves else None


def _arrange_group(
    group: Group, ready: Sequence[Pod], members: Sequence[Pod], waiting: Collection[str]
) -> tuple[list[Unit], list[tuple[Pod, str]]]:
    name = errors.quoted(group[1])
    living = [pod for pod in members if not pod.has_ended]
    sizes = {pod.group_size: pod.ref.name for pod in reversed(living)}
    if len(sizes) > 1:
        (first, pod), (second, other) = sorted(sizes.items())[:2]
        sentence = (
            f"its group {name} has several sizes: {first} in pod {pod} and {second} in pod {other}; "
            f"delete the pods with the wrong {contract.GROUP_SIZE} and recreate them"
        )
        return [], [(pod, sentence) for pod in ready]
    size = ready[0].group_size
    owners = {pod.controller.uid for pod in ready if pod.controller is not None}
    placed = [pod for pod in living if pod.ref.uid not in waiting]
    placed += [pod for pod in members if pod.phase == "Succeeded" and pod.controller and pod.controller.uid in owners]
    if len(placed) >= size:
        return [Unit((pod,)) for pod in ready], []
    needed = size - len(placed)
    if len(ready) < needed:
        sentence = _incomplete(name, size, have=len(placed) + len(ready), others=len(living) - len(placed) - len(ready))
        return [], [(pod, sentence) for pod in ready]
    extra = f"its group {name} already has {size} other pods: it waits until they are placed"
    return [Unit(tuple(ready[:needed]), group[1])], [(pod, extra) for pod in ready[needed:]]


def _incomplete(name: str, size: int, *, have: int, others: int) -> str:
    if others > 0 and have + others >= size:
        return f"waits for its group {name}: {others} of its {size} pods have scheduling gates of other controllers"
    return f"waits for {size - have} more of its group {name} (have {have} of {size})"
