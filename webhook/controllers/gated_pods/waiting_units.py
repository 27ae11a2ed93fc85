"""Waiting units: the gated pods of a round, grouped into units that are placed together or not at all. Pure.

A pod without a group is a unit of one. Running members of a group count, so a recreated pod joins them. Members that
have succeeded count if they have the same owner, which excludes an earlier run of the same name. Nearly all pods were
placed long ago, so an index holds those that a round has work for. The ledger is read once per round; code that changes
a backfill reservation within the round updates `ExistingAllocations`.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from gpushare import contract, errors
from gpushare.allocation import NodeAllocation
from gpushare.gpunode import GpuNode
from gpushare.group_size import GroupSize
from gpushare.request import Request
from webhook.controllers import queue
from webhook.pods import pod_manifest
from webhook.pods.mutation import Placed
from webhook.pods.stored_pod import Pod

Group = tuple[str, str]  # namespace, name


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """Pods that are placed together, with their place in the queue; `group` is empty for a single pod.

    joiners: of an elastic gang, pods that are placed with the others as far as they fit. used_nodes: where other pods
    of its group run.
    """

    members: tuple[Pod, ...]
    group: str = ""
    joiners: tuple[Pod, ...] = ()
    used_nodes: tuple[str, ...] = ()
    order: queue.Order = dataclasses.field(init=False, compare=False)
    namespace: str = dataclasses.field(init=False, compare=False)
    uids: tuple[str, ...] = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the other fields once: they are read far more often than units are made."""
        behind, created, name = zip(*map(queue.order, self.members), strict=True)
        object.__setattr__(self, "order", (max(behind), max(created), max(name)))
        object.__setattr__(self, "namespace", self.members[0].ref.namespace)
        object.__setattr__(self, "uids", tuple(pod.ref.uid for pod in self.pods))

    @property
    def pods(self) -> tuple[Pod, ...]:
        return (*self.members, *self.joiners)


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
        self, gated: Mapping[str, Pod], members: Mapping[Group, Mapping[str, Pod]], *, ungated: Collection[str] = ()
    ) -> Arranged:
        """Group waiting pods, `gated`, into units; ungated: pods of which our copy does not show that yet."""
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
                held_back.append((pod, pod_manifest.foreign_gates_reason(pod.foreign_gates)))
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
    """Return the warning for a gang with parts of GPUs on several nodes, as their arbiters do not coordinate."""
    nodes = {member.node for member in placed}
    whole = all(share.request_percent >= 100 for member in placed for share in member.shares)
    if len(nodes) < 2 or whole:
        return ""
    return (
        f"its group {errors.quoted(group)} shares GPUs on {len(nodes)} nodes, which do not take turns at "
        f"the same time: kernels that wait for a kernel on another node waste most of their turns. Request whole GPUs "
        f'({contract.REQUEST}: "1"), or few enough GPUs to fit on one node'
    )


def group_of(pod: Pod) -> Group | None:
    """Return the gang in which the pod counts; None for a single pod, and for one that is deleted without a share."""
    return (pod.ref.namespace, pod.group) if pod.group and (pod.allocation_id or not pod.leaves) else None


def _arrange_group(
    group: Group, ready: Sequence[Pod], members: Sequence[Pod], waiting: Collection[str]
) -> tuple[list[Unit], list[tuple[Pod, str]]]:
    name = errors.quoted(group[1])
    leaving = sum(pod.leaves and pod.may_hold and not pod.has_ended for pod in members)
    members = [pod for pod in members if not pod.leaves]
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
    running = [pod for pod in living if pod.ref.uid not in waiting]
    ended = [pod for pod in members if pod.phase == "Succeeded" and pod.controller and pod.controller.uid in owners]
    used_nodes = tuple(dict.fromkeys(pod.placed_on for pod in running if pod.placed_on))
    needed = size.least - len(running) - len(ended)
    most = needed if needed > 0 else len(ready)
    extra = f"its group {name} already has {size.most} other pods: it waits until they are placed"
    units: list[Unit] = []
    if size.is_elastic:
        extra = (
            f"its group {name} already has {size.most} other pods running or waiting ahead of it, the maximum of "
            f"its {contract.GROUP_SIZE} {size}: it waits until one ends"
        )
        valid = [pod for pod in ready if isinstance(pod.request, Request)]
        # Members that have succeeded complete the gang, but those that are left still start with the minimum.
        needed = max(needed, min(size.least - len(running), len(valid)))
        if len(valid) >= needed:
            units = [Unit((pod,), used_nodes=used_nodes) for pod in ready if not isinstance(pod.request, Request)]
            ready = valid
        most = max(0, size.most - len(running) - leaving)
    if needed <= 0:
        units += [Unit((pod,), used_nodes=used_nodes) for pod in ready[:most]]
    elif len(ready) < needed:
        return [], [(pod, _incomplete(name, size, len(living), size.least - needed + len(ready))) for pod in ready]
    elif needed <= most:
        units.append(Unit(tuple(ready[:needed]), group[1], tuple(ready[needed:most]), used_nodes))
    else:
        most = 0
    return units, [(pod, extra) for pod in ready[most:]]


def _incomplete(name: str, size: GroupSize, living: int, have: int) -> str:
    others, least = living - have, "at least " if size.is_elastic else ""
    if others > 0 and have + others >= size.least:
        gates = "have scheduling gates of other controllers"
        return f"waits for its group {name}: {others} of its {size} pods {gates}"
    return f"waits for {size.least - have} more of its group {name} (have {have} of {least}{size.least})"


class PodIndex:
    """Waiting and stuck pods (see `Pod`) by UID, and the members of each gang that stay or have a share, by UID."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.waiting: dict[str, Pod] = {}
        self.stuck: dict[str, Pod] = {}
        self.members: dict[Group, dict[str, Pod]] = {}
        self._placed: dict[str, queue.Order] = {}
        for pod in pods:
            self.update(None, pod)

    def update(self, before: Pod | None, after: Pod | None) -> None:
        group = group_of(before) if before is not None else None
        if before is not None and group is not None and (after is None or group_of(after) != group):
            del self.members[group][before.ref.uid]
            if not self.members[group]:
                del self.members[group]
        if after is None:
            for index in (self.waiting, self.stuck, self._placed):
                index.pop(before.ref.uid if before is not None else "", None)
            return
        uid = after.ref.uid
        for index, belongs in ((self.waiting, after.waits), (self.stuck, after.is_stuck)):
            if belongs:
                index[uid] = after
            else:
                index.pop(uid, None)
        if (group := group_of(after)) is not None:
            self.members.setdefault(group, {})[uid] = after
        if after.allocation_id and not (before is not None and before.allocation_id):
            self._placed[uid] = queue.order(after)

    def newly_placed(self) -> Mapping[str, queue.Order]:
        placed, self._placed = self._placed, {}
        return placed


AllocationIds = Mapping[str, Collection[str]]  # by node


@dataclasses.dataclass(slots=True)
class ExistingAllocations:
    """Shares and backfill reservations, by UID of the pod; `orders`: the place of its unit in the queue."""

    shares: dict[str, NodeAllocation]
    reserved: dict[str, list[NodeAllocation]]
    orders: Mapping[str, queue.Order]

    def has_any(self, unit: Unit) -> bool:
        """Whether the unit has something in the ledger. Every round continues with such units."""
        return any(uid in self.shares or uid in self.reserved for uid in unit.uids)

    def reserved_for(self, unit: Unit) -> AllocationIds:
        return by_node(entry for uid in unit.uids for entry in self.reserved.get(uid, ()))

    def reserved_from(self, unit: Unit) -> AllocationIds:
        """Return the reservations of the unit, and of the units behind it, which give way to it."""
        return by_node(
            entry
            for uid, entries in self.reserved.items()
            if uid in unit.uids or (uid in self.orders and self.orders[uid] > unit.order)
            for entry in entries
        )


class AllocationHolders:
    """The UIDs of pods with allocations on each node, read again only for nodes that have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[GpuNode, frozenset[str]]] = {}

    def existing(self, nodes: Iterable[GpuNode], arranged: Arranged) -> ExistingAllocations:
        """Read what the arranged pods have in `nodes`, as stored: pending changes of this process may fail."""
        orders = {uid: unit.order for unit in arranged.units for uid in unit.uids}
        waiting = orders.keys() | {pod.ref.uid for pod, _ in arranged.held_back}
        shares: dict[str, NodeAllocation] = {}
        reserved: dict[str, list[NodeAllocation]] = collections.defaultdict(list)
        known, self._known = self._known, {}
        for node in nodes:
            cached = known.get(node.name)
            if cached is None or cached[0] is not node:
                cached = node, frozenset(entry.pod.uid for entry in node.allocations)
            self._known[node.name] = cached
            for allocation in node.allocations if not cached[1].isdisjoint(waiting) else ():
                uid = allocation.pod.uid
                if uid not in waiting:
                    continue
                if allocation.is_backfill_reservation:
                    reserved[uid].append(NodeAllocation(node.name, allocation))
                elif uid not in shares or allocation.id < shares[uid].allocation.id:
                    shares[uid] = NodeAllocation(node.name, allocation)
        return ExistingAllocations(shares, dict(reserved), orders)


def by_node(entries: Iterable[NodeAllocation]) -> AllocationIds:
    ids: dict[str, set[str]] = collections.defaultdict(set)
    for entry in entries:
        ids[entry.node].add(entry.allocation.id)
    return ids
