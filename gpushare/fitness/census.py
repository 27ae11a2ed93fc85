"""Census: every node and every pod on one, kept as they come and go, so that to judge a node costs next to nothing.

What was found out about a node is remembered for each shape of pod, until something changes on that node.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final

from gpushare.fitness import judgement, neighbours, resources, selectors, volumes
from gpushare.fitness.attaching import Attaching
from gpushare.fitness.crowd import Crowd, Occupant
from gpushare.fitness.groups import Groups
from gpushare.fitness.machine import Machine
from gpushare.fitness.machines import Machines
from gpushare.fitness.opening import Opening
from gpushare.fitness.relations import Relations, Term
from gpushare.fitness.shape import Shape

SHAPES_KEPT: Final = 256
NO_NODE: Final = "has a GPUNode but no Node object"

# Node, amounts -> whether the ledger itself has too little left there: then the GPUs are the ones to refuse, with more
# to say.
IsFull = Callable[[str, tuple[tuple[str, int], ...]], bool]


class Verdicts(dict[str, str | None]):
    """node -> why a pod of one shape cannot run there; a node that is not in it is judged when it is asked for.

    For a node that was judged before, that is one look-up.
    """

    __slots__ = ("_judge", "_machines", "_opened_at", "_opening", "_shape")

    def __init__(self, shape: Shape, machines: Machines, judge: Callable[[str, Verdicts], str | None]) -> None:
        self._shape = shape
        self._machines = machines
        self._judge = judge
        self._opening: Opening | None = None
        self._opened_at = -1

    def __missing__(self, node: str) -> str | None:
        verdict = self[node] = self._judge(node, self)
        return verdict

    def opening(self) -> Opening:
        """Which machines will do for the shape, as they are now."""
        if self._opening is None or self._opened_at != self._machines.changes:
            self._opening, self._opened_at = Opening(self._machines, self._shape), self._machines.changes
        return self._opening


class Judge:
    """Why a node cannot take one pod, as the rest of a sentence, or None; and the same without the sentence."""

    __slots__ = ("_machines", "_passing", "_rules", "_there", "_verdicts")

    def __init__(
        self, machines: Machines, verdicts: Verdicts, there: Mapping[str, str | None], rules: Sequence[neighbours.Rule]
    ) -> None:
        """`there`: the node, if there is one, where the pod itself is counted, judged as if it were not."""
        self._machines = machines
        self._verdicts = verdicts
        self._there = there
        self._rules = rules
        self._passing = functools.reduce(operator.and_, (rule.open for rule in rules), -1)

    def __call__(self, node: str) -> str | None:
        """Why this node cannot take it, or None."""
        verdict = self._there[node] if node in self._there else self._verdicts[node]
        if verdict is not None or not self._rules or (row := 1 << self._machines.row(node)) & self._passing:
            return verdict
        return next(rule.why(self._machines[node]) for rule in self._rules if not rule.open & row)

    def fits(self, node: str) -> bool:
        """Whether there is nothing against the node: for whoever asks of all, and has nobody to tell why not."""
        if node not in self._machines:
            return False
        row = 1 << self._machines.row(node)
        if not row & self._passing or not row & self._verdicts.opening().rows:
            return False
        return (self._there[node] if node in self._there else self._verdicts[node]) is None


class Census:
    """Not for several threads.

    What the ledger counts as well is judged where the ledger is not full (`is_full`): the kubelet may offer less than
    there is, for a moment after a restart, or for as long as a GPU is sick. `changed` is called with a node on which
    something has.
    """

    def __init__(self) -> None:
        self.is_full: IsFull = lambda *_: False
        self.changed: Callable[[str], object] = lambda _: None
        self.knows_claims: Callable[[], bool] = lambda: False  # whether a claim that was not put here does not exist
        self._machines = Machines()
        self._groups = Groups()
        self._crowds: dict[str, Crowd] = {}
        self._occupants: dict[Hashable, Occupant] = {}
        self._repelling: dict[tuple[Term, ...], collections.Counter[str]] = {}  # anti-affinity -> nodes
        self._attaching = Attaching()
        self._reach: dict[volumes.Name, tuple[selectors.NodeTerm, ...]] = {}  # by claim
        self._verdicts: collections.OrderedDict[Shape, Verdicts] = collections.OrderedDict()

    def machine(self, name: str) -> Machine | None:
        """A node, or None."""
        return self._machines.get(name)

    def put_machine(self, name: str, machine: Machine | None) -> None:
        """A node has come, changed or (None) gone."""
        if self._machines.get(name) == machine:
            return
        if machine is None:
            self._machines.remove(name)
            self._leave(name)
        else:
            self._machines.put(name, machine)
        self.forget(name)

    def put(self, key: Hashable, occupant: Occupant | None) -> bool:
        """A pod has come, changed or (None) gone; return whether that changes what is free anywhere."""
        before = self._occupants.get(key)
        if before == occupant:
            return False
        if before is not None:
            crowd = self._crowds[before.node]
            crowd.remove(before)
            self._groups.remove(before, self._machines.row(before.node))
            if not crowd.count:
                del self._crowds[before.node]
            self._leave(before.node)
            self._repel(before, -1)
            if before.mounts:
                self._attaching.remove(key, before)
            del self._occupants[key]
            self.forget(before.node)
        if occupant is not None:
            self._occupants[key] = occupant
            self._crowds.setdefault(occupant.node, Crowd()).add(occupant)
            self._groups.add(occupant, self._machines.row(occupant.node))
            self._repel(occupant, 1)
            if occupant.mounts:
                self._attaching.add(key, occupant)
            self.forget(occupant.node)
        return True

    def put_storage(self, name: volumes.Name, before: volumes.Found | None, after: volumes.Found | None) -> None:
        """A claim, volume, class, CSINode or attachment (namespace, name) has come, changed or (None) gone."""
        if isinstance(before, volumes.Disk) and before.claim is not None:
            self._reach.pop(before.claim, None)
        if isinstance(after, volumes.Disk) and after.claim is not None and after.terms is not None:
            self._reach[after.claim] = after.terms
        if after is not None:
            self._attaching.put(name, after)
        elif before is not None:
            self._attaching.drop(name, before)

    def count_volumes(self, most: int) -> bool:
        """Do some of what the next judgement would do, on so many nodes; return whether there is more of it."""
        return self._attaching.count(most)

    def unknown_claim(self, relations: Relations) -> str:
        """The first claim of a pod that was not put here; empty if there is none."""
        return self._attaching.missing(relations.namespace, relations.mounts)

    def forget(self, node: str) -> None:
        """Judge this node anew: something has changed there, be it only in the ledger."""
        for verdicts in self._verdicts.values():
            verdicts.pop(node, None)
        self.changed(node)

    def occupant(self, key: Hashable) -> Occupant | None:
        """A pod that is counted, or None."""
        return self._occupants.get(key)

    def crowd(self, node: str) -> Crowd:
        """What is used of a node."""
        return self._crowds.get(node, judgement.EMPTY)

    def room(self, node: str) -> tuple[int, int, int] | None:
        """CPU (thousandths), memory (bytes) and pods that a node has room for; None where nobody knows."""
        machine = self._machines.get(node)
        if machine is None or machine.allocatable is None:
            return None
        there = self.crowd(node)
        cpu, memory, pods = (
            machine.allocatable.get(one, 0) for one in (resources.CPU, resources.MEMORY, resources.PODS)
        )
        return (
            cpu - there.amounts.get(resources.CPU, 0),
            memory - there.amounts.get(resources.MEMORY, 0),
            pods - there.count,
        )

    def judge(self, shape: Shape, relations: Relations, *, itself: Hashable = None) -> Judge:
        """Judges nodes for a pod.

        `itself`: the key of an occupant that is this very pod, and so is not in its own way.
        """
        verdicts = self._verdicts_of(shape)
        own = self._occupants.get(itself) if itself is not None else None
        with self._without(itself, own):
            rules = neighbours.rules(
                relations,
                shape,
                machines=self._machines,
                groups=self._groups,
                repelling=self._repelling,
                itself=own,
                missing=self.unknown_claim(relations) if relations.mounts and self.knows_claims() else "",
                full=self._attaching.full(relations.namespace, relations.mounts),
                reach=self._reach,
            )
        there = {own.node: self._judge(shape, own.node, own, verdicts)} if own is not None else {}
        return Judge(self._machines, verdicts, there, rules)

    def _verdicts_of(self, shape: Shape) -> Verdicts:
        found = self._verdicts.get(shape)
        if found is None:
            found = self._verdicts[shape] = Verdicts(
                shape, self._machines, lambda node, verdicts: self._judge(shape, node, None, verdicts)
            )
            if len(self._verdicts) > SHAPES_KEPT:
                self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(shape)
        return found

    def _judge(self, shape: Shape, node: str, own: Occupant | None, verdicts: Verdicts) -> str | None:
        machine = self._machines.get(node)
        if machine is None:
            return NO_NODE
        crowd = self.crowd(node)
        if own is not None:
            crowd = crowd.without(own)
        opening = verdicts.opening()
        if not opening.rows >> self._machines.row(node) & 1:
            return opening.why_not(machine)
        reason = judgement.unfit(machine, crowd, shape)
        if reason is None and shape.own and not self.is_full(node, shape.own):
            return judgement.withheld(machine, crowd, shape.own)
        return reason

    @contextlib.contextmanager
    def _without(self, key: Hashable, own: Occupant | None) -> Iterator[None]:
        """For as long as this is open one of the occupants is in no group, and mounts nothing."""
        if own is None:
            yield
            return
        row = self._machines.row(own.node)
        self._groups.remove(own, row)
        if own.mounts:
            self._attaching.remove(key, own)
        try:
            yield
        finally:
            self._groups.add(own, row)
            if own.mounts:
                self._attaching.add(key, own)

    def _leave(self, name: str) -> None:
        if name not in self._crowds:
            self._machines.release(name)

    def _repel(self, one: Occupant, sign: int) -> None:
        if not one.repels:
            return
        nodes = self._repelling.setdefault(one.repels, collections.Counter())
        nodes[one.node] += sign
        if not nodes[one.node]:
            del nodes[one.node]
        if not nodes:
            del self._repelling[one.repels]
