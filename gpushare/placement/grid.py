"""Grid: all nodes × GPUs as arrays, so that a decision is a handful of array operations at any size of the cluster.

A node has a column (its slot), a GPU a row, so reductions over the GPUs of each node read memory in order. Free
capacity is stored twice: exactly (percent, bytes), to decide what fits, and in whole percent, to value it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpushare import ledger
from gpushare.gpunode import FACTS, Gpu, Mode
from gpushare.placement import topology
from gpushare.placement.gpu_label_sets import GpuLabelSets
from gpushare.placement.topology import GpuTopology
from gpushare.placement.view import NodeView

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

UNKNOWN: Final = 1e15  # room of a node with unknown CPU or memory: more than any pod requests
GONE: Final = -2 * UNKNOWN  # room of an empty slot: too little even for a pod without requests
_MAX: Final = 2**62  # limit of the arrays that leaves room for subtraction; more than any GPU has
POINTS: Final = 101  # 0 to 100 percent
ABSENT: Final = 0  # kind and facts of a missing GPU


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """The unrequested CPU and memory of a node, and how many more pods it takes."""

    cpu_milli: float = UNKNOWN
    memory_bytes: float = UNKNOWN
    pods: float = UNKNOWN


@dataclasses.dataclass(slots=True)
class Columns:
    """Some nodes (n) of the grid × their GPUs (g): views of it, or copies of a few columns."""

    compute: Ints  # [g, n] free percent, below 0 if overcommitted
    memory: Ints  # [g, n] free bytes, below 0 if overcommitted
    compute_percent: Ints  # [g, n] free and usable, 0 to 100
    memory_percent: Ints  # [g, n] free and usable, 0 to 100, rounded down
    least_percent: Ints  # [g, n] the smaller of the two
    memory_point: Ints  # [g, n] kind and memory_percent as one index: POINTS per kind
    kind: Ints  # [g, n]
    live: Ints  # [g, n] the kind, or ABSENT if the GPU takes no shares now
    facts: Ints  # [g, n] number of the GPU's `FACTS`; ABSENT: no GPU
    holders: Ints  # [g, n] numbers of `GpuLabelSets`
    unused_linked: Ints  # [g, n] unused GPUs in its link group; 0 without links
    state: Ints  # [g, n] number of the GPU's state: GPUs in one state are equal in all but `unused_linked`
    cpu: Floats  # [n] free milli-CPUs
    host: Floats  # [n] free bytes
    pods: Floats  # [n] pods that still fit
    node_kind: Ints  # [n] kind of the node's first GPU
    layout: Ints  # [n] number of the node's topology

    def at(self, slots: Ints) -> Columns:
        """Return these columns, in ascending order; copies of some, views of all."""
        if len(slots) == len(self.cpu):
            return dataclasses.replace(self)
        if self.kind.flags.c_contiguous:  # faster, but would copy views as a whole first
            return Columns(*(getattr(self, name).take(slots, -1) for name in _FIELDS))
        return Columns(*(getattr(self, name)[..., slots] for name in _FIELDS))

    def hosts_at(self, slots: Ints) -> Columns:
        """Return these columns without the properties that GPUs in one state share, which are arbitrary."""
        own = (getattr(self, name).take(slots, -1) for name in _FIELDS[_PER_STATE:])
        return Columns(*(getattr(self, name) for name in _FIELDS[:_PER_STATE]), *own)

    def by_state(self, states: Columns) -> tuple[Columns, Columns]:
        """Return columns whose `state` may be changed, and the states: these, or each GPU's own if they are fewer."""
        if states.kind.size < self.kind.size:
            return dataclasses.replace(self, state=self.state.copy()), states
        own = dataclasses.replace(self, **{name: getattr(self, name).reshape(1, -1) for name in _FIELDS[:_PER_GPU]})
        return dataclasses.replace(self, state=np.arange(self.kind.size).reshape(self.kind.shape)), own

    def in_states(self, states: Columns) -> Columns:
        """Return these columns with the properties of their GPUs' states."""
        values = {name: getattr(states, name)[0].take(self.state) for name in _FIELDS[:_PER_STATE]}
        return dataclasses.replace(self, **values)

    def of_gpus(self, gpus: Ints) -> Columns:
        """Return these columns of states with the given ones only."""
        return dataclasses.replace(self, **{name: getattr(self, name).take(gpus, 1) for name in _FIELDS[:_PER_GPU]})

    def beside(self, others: Columns) -> Columns:
        """Return copies of these columns, then the others."""
        joined = {name: np.concatenate([getattr(self, name), getattr(others, name)], 1) for name in _FIELDS[:_PER_GPU]}
        return dataclasses.replace(self, **joined)

    def first(self, count: int) -> Columns:
        """Return views of the first columns."""
        return Columns(*(getattr(self, name)[..., :count] for name in _FIELDS))


_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Columns))
_PER_GPU: Final = 12  # the first fields have a row per GPU
_PER_STATE: Final = 10  # the first fields are those of the GPU's state


def free_percent(gpu: Gpu, used: ledger.GpuUse) -> tuple[int, int]:
    """Return free compute and memory of a usable GPU, 0 to 100 each, rounded down."""
    memory = gpu.memory_bytes - used.memory_bytes
    memory_percent = max(0, 100 * memory // gpu.memory_bytes) if gpu.memory_bytes else 0
    return min(100, max(0, 100 - used.request_percent)), memory_percent


def unused_linked(layout: GpuTopology, used: Sequence[ledger.GpuUse]) -> list[int]:
    """Return, by row, the number of unused GPUs in its link group; 0 without links."""
    counts = [0] * len(used)
    for rows in layout.links():
        unused = sum(not used[row].holders for row in rows)
        for row in rows:
            counts[row] = unused
    return counts


def empty(gpus: int, nodes: int) -> Columns:
    """Return columns without nodes."""
    arrays: list[Any] = [np.zeros((gpus, nodes), np.int64) for _ in range(_PER_GPU)]
    arrays += [np.zeros(nodes, kind) for kind in (float, float, float, np.int64, np.int64)]
    return Columns(*arrays)


def _enlarged(columns: Columns, gpus: int, nodes: int) -> Columns:
    larger = empty(gpus, nodes)
    height, width = columns.kind.shape
    for name in _FIELDS:
        old, new = getattr(columns, name), getattr(larger, name)
        new[(slice(height), slice(width)) if old.ndim == 2 else slice(width)] = old
    return larger


class Grid:
    """The arrays, one column per node. Not thread-safe."""

    def __init__(self) -> None:
        self.columns = empty(1, 16)
        self.kinds: list[Gpu | None] = [None]  # a GPU per distinct kind, with its permanent properties only
        self.node_gpus = [0]  # [kind] GPUs of the largest node with this kind
        self.gpus_of_kinds = [0]
        self._node_sizes: list[collections.Counter[int]] = [collections.Counter()]  # [kind] number of GPUs → nodes
        self.facts: list[Gpu | None] = [None]  # an anonymous GPU per distinct set of facts
        self.layouts: list[GpuTopology] = []
        self.most_linked = 1  # size of the largest link group
        self.holders = GpuLabelSets()
        self.changed = np.zeros(16, np.int64)  # [n] the `clock` of each slot's last change
        self.rows = np.zeros(16, np.int64)  # [n] the bit of each slot's node in the `misfits` of `Fleet.place`, or -1
        self.clock = 0
        self._states = empty(1, 16)  # a column for each distinct state of a GPU; 0: no GPU
        self._state_ids: dict[tuple[int, ...], int] = {}
        self._in_state: list[int] = [0]  # [state] GPUs
        self._unused_states: list[int] = []
        self.width = 0  # number of slots ever used
        self.slots: dict[str, int] = {}
        self.names: list[str] = []  # by slot
        self._kind_ids: dict[Gpu, int] = {}
        self._fact_ids: dict[object, tuple[int, int]] = {}  # facts → (number of facts, number of kind)
        self._layout_ids: dict[GpuTopology, int] = {}
        self._free: list[int] = []
        self._discovered: list[tuple[Gpu, ...]] = []  # by slot, in the order of rows
        self._ranks: Ints | None = None
        self._sizes = np.zeros(0, np.int64)
        self.places: dict[str, tuple[int, int]] = {}  # UUID → (slot, row)

    def sizes(self) -> Ints:
        """Return [kind] memory in bytes."""
        if len(self._sizes) != len(self.kinds):
            self._sizes = np.array([min(kind.memory_bytes, _MAX) if kind else 0 for kind in self.kinds], np.int64)
        return self._sizes

    def gpus(self, slot: int) -> tuple[Gpu, ...]:
        """Return the GPUs of a slot by row: sorted by index, which breaks ties."""
        return self._discovered[slot]

    def now(self) -> Columns:
        """Return the columns of every slot ever used."""
        return self.columns.first(self.width)

    def ranks(self) -> Ints:
        """Return [n] the rank of each slot's node by name; ties go to the first name, independent of slots."""
        if self._ranks is None:
            ranks = np.full(self.width, len(self.slots), np.int64)
            ranks[[self.slots[name] for name in sorted(self.slots)]] = np.arange(len(self.slots))
            self._ranks = ranks
        return self._ranks

    def put(self, view: NodeView, room: Room) -> int:
        """Write a node's column; return its slot."""
        name = view.node.name
        gpus = topology.in_order(view.node.gpus)
        slot = self._slot(name, len(gpus))
        self._forget(slot)
        self._discovered[slot] = gpus
        for row, gpu in enumerate(gpus):
            self.places[gpu.uuid] = (slot, row)
        layout = topology.layout(gpus)
        unused = unused_linked(layout, [view.used[gpu.uuid] for gpu in gpus])
        rows = [self._row(gpu, view.used[gpu.uuid]) for gpu in gpus]
        self._write(slot, [(*row, linked, self._acquire(row)) for row, linked in zip(rows, unused, strict=True)])
        columns = self.columns
        self._count(slot, 1)
        columns.node_kind[slot] = self._node_kind(gpus)
        columns.layout[slot] = self._layout(layout)
        columns.cpu[slot], columns.host[slot], columns.pods[slot] = room.cpu_milli, room.memory_bytes, room.pods
        self._touch(slot)
        return slot

    def room(self, name: str) -> Room:
        """Return the free CPU, memory and pods of a node, as far as known."""
        if name not in self.slots:
            return Room()
        slot, columns = self.slots[name], self.columns
        return Room(float(columns.cpu[slot]), float(columns.host[slot]), float(columns.pods[slot]))

    def drop(self, name: str) -> None:
        """Clear the node's column for reuse."""
        slot = self.slots.pop(name)
        self._forget(slot)
        self._discovered[slot] = ()
        self._write(slot, [])
        self.columns.cpu[slot] = self.columns.host[slot] = self.columns.pods[slot] = GONE
        self.columns.node_kind[slot] = ABSENT
        self.names[slot] = ""
        self._free.append(slot)
        self._ranks = None
        self._touch(slot)

    def _row(self, gpu: Gpu, used: ledger.GpuUse) -> tuple[int, ...]:
        facts, kind = self._facts_and_kind(gpu)
        compute, memory = 100 - used.request_percent, gpu.memory_bytes - used.memory_bytes
        usable = gpu.takes_shares
        compute_percent, memory_percent = free_percent(gpu, used) if usable else (0, 0)
        return (
            max(-_MAX, compute),
            max(-_MAX, min(_MAX, memory)),
            compute_percent,
            memory_percent,
            min(compute_percent, memory_percent),
            kind * POINTS + memory_percent,
            kind,
            kind if usable else ABSENT,
            facts,
            self.holders.acquire(used.holders),
        )

    def _count(self, slot: int, change: int) -> None:
        """Count the slot's node among the nodes of its kinds of GPU, or no more."""
        size = len(self._discovered[slot])
        for kind, gpus in collections.Counter(self.columns.kind[:size, slot].tolist()).items():
            self.gpus_of_kinds[kind] += change * gpus
            sizes = self._node_sizes[kind]
            sizes[size] += change
            if not sizes[size]:
                del sizes[size]
            self.node_gpus[kind] = max(sizes, default=0)

    def has_fewer_states(self, nodes: int) -> bool:
        """Whether there are fewer states than GPUs on so many nodes."""
        return len(self._in_state) < nodes * len(self.columns.kind)

    def states(self) -> Columns:
        """Return a column with one GPU for each state; those that no GPU is in have arbitrary values."""
        return self._states.first(len(self._in_state))

    def _acquire(self, row: tuple[int, ...]) -> int:
        """Count one more GPU in this state; return its number."""
        number = self._state_ids.get(row)
        if number is None:
            number = self._unused_states.pop() if self._unused_states else len(self._in_state)
            if number == len(self._in_state):
                self._in_state.append(0)
                if number == self._states.kind.shape[1]:
                    self._states = _enlarged(self._states, 1, 2 * number)
            self._state_ids[row] = number
            for name, value in zip(_FIELDS, row, strict=False):
                getattr(self._states, name)[0, number] = value
        self._in_state[number] += 1
        return number

    def _release(self, number: int) -> None:
        self._in_state[number] -= 1
        if not self._in_state[number]:
            states = self._states
            del self._state_ids[tuple(int(getattr(states, name)[0, number]) for name in _FIELDS[:_PER_STATE])]
            self._unused_states.append(number)

    def _write(self, slot: int, rows: Sequence[tuple[int, ...]]) -> None:
        columns = self.columns
        block = np.zeros((_PER_GPU, columns.kind.shape[0]), np.int64)
        if rows:
            block[:, : len(rows)] = np.array(rows, np.int64).T
        for name, values in zip(_FIELDS[:_PER_GPU], block, strict=True):
            getattr(columns, name)[:, slot] = values

    def kind_of(self, gpu: Gpu) -> int:
        """Return the number of a GPU's kind; assign one if it is new."""
        return self._facts_and_kind(gpu)[1]

    def _facts_and_kind(self, gpu: Gpu) -> tuple[int, int]:
        facts = FACTS(gpu)
        known = self._fact_ids.get(facts)
        if known is None:
            kind = Gpu(
                "",
                0,
                gpu.model,
                gpu.memory_bytes,
                gpu.compute_capability,
                isolations=gpu.isolations,
                sm_partitions=gpu.sm_partitions,
                mig_geometry=gpu.mig_geometry,
            )
            if kind not in self._kind_ids:
                self._kind_ids[kind] = len(self.kinds)
                self.kinds.append(kind)
                self.node_gpus.append(0)
                self.gpus_of_kinds.append(0)
                self._node_sizes.append(collections.Counter())
            known = self._fact_ids[facts] = (len(self.facts), self._kind_ids[kind])
            self.facts.append(gpu.anonymous())
        return known

    def _node_kind(self, gpus: Sequence[Gpu]) -> int:
        gpu = next((gpu for gpu in gpus if gpu.mode is Mode.FRACTIONAL), gpus[0] if gpus else None)
        return ABSENT if gpu is None else self.kind_of(gpu)

    def _layout(self, layout: GpuTopology) -> int:
        if layout not in self._layout_ids:
            self._layout_ids[layout] = len(self.layouts)
            self.layouts.append(layout)
            self.most_linked = max(self.most_linked, layout.most_linked)
        return self._layout_ids[layout]

    def _slot(self, name: str, gpus: int) -> int:
        if gpus > self.columns.kind.shape[0]:
            self._grow(gpus, self.columns.kind.shape[1])
        if name in self.slots:
            return self.slots[name]
        if self._free:
            slot = self._free.pop()
        else:
            if self.width == self.columns.kind.shape[1]:
                self._grow(self.columns.kind.shape[0], 2 * self.width)
            slot = self.width
            self.width += 1
            self.names.append("")
            self._discovered.append(())
        self.slots[name] = slot
        self.names[slot] = name
        self._ranks = None
        return slot

    def _grow(self, gpus: int, nodes: int) -> None:
        self.columns = _enlarged(self.columns, gpus, nodes)
        self.changed, self.rows = (np.pad(each, (0, nodes - len(each))) for each in (self.changed, self.rows))

    def _forget(self, slot: int) -> None:
        self._count(slot, -1)
        holders, states = self.columns.holders[:, slot].tolist(), self.columns.state[:, slot].tolist()
        for row, gpu in enumerate(self._discovered[slot]):
            self.holders.release(holders[row])
            self._release(states[row])
            if self.places.get(gpu.uuid) == (slot, row):
                del self.places[gpu.uuid]

    def _touch(self, slot: int) -> None:
        self.clock += 1
        self.changed[slot] = self.clock
