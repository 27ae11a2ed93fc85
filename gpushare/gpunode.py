"""GpuNode: one node's GPUs and the allocations on them; all GpuNodes together are the ledger."""

from __future__ import annotations

import dataclasses
import enum
import json
import operator
from collections.abc import Mapping
from typing import Any, Final

from gpushare import allocation, contract
from gpushare.allocation import ONLY_ARBITER, Isolation
from gpushare.mig.instance_layout import ProfileGeometry


class Mode(enum.StrEnum):
    """The use of a GPU; only `FRACTIONAL` ones take shares by annotation."""

    FRACTIONAL = "fractional"
    EXCLUSIVE = "exclusive"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


class MemoryEnforcement(enum.StrEnum):
    """The component that refuses memory beyond a share's limit, on a GPU or for a process."""

    LIBRARY = "library"  # the library, in the processes that load it
    DRIVER = "driver"  # also the driver, in every process, by cgroup
    NONE = "none"  # only for a process: it bypassed the library


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """The properties of a GPU, without allocations."""

    uuid: str
    index: int
    model: str
    memory_bytes: int  # 0 if the driver does not report it
    compute_capability: tuple[int, int] = (0, 0)
    numa_node: int | None = None
    link_group: int | None = None  # GPUs with the same number are joined by NVLink; None: no link, or unknown
    pci_bus_id: str = ""
    mode: Mode = Mode.FRACTIONAL
    pending_mode: Mode | None = None  # the next mode, set up once the GPU is unused; no new pods until then
    mig_profiles: tuple[str, ...] = ()  # of its MIG devices, by index, such as 1g.10gb
    isolations: tuple[Isolation, ...] = ONLY_ARBITER  # that its shares may have
    sm_partitions: int = 0  # equal static SM partitions, one for each share with the isolation mps; 0: not partitioned
    mig_geometry: tuple[ProfileGeometry, ...] = ()  # the profiles that shares with the isolation mig may have
    memory_enforcement: MemoryEnforcement = MemoryEnforcement.LIBRARY
    healthy: bool = True
    health_reason: str = ""  # why it is unhealthy, as a sentence
    cordoned: bool = False  # closed to new pods by an admin, or for a change of mode
    closed: str = ""  # why its node takes no new pods, as a clause; empty if it does
    owner: str = ""  # of a GPU that another device plugin gives: OTHER_OWNER, or the UID of the placeholder that has it
    unowned: bool = False  # whether it has an owner that the ledger does not borrow it from

    @property
    def takes_shares(self) -> bool:
        """Whether the ledger may place shares on it now."""
        is_open = self.healthy and not self.cordoned and not self.closed and not self.unowned
        return self.mode is Mode.FRACTIONAL and is_open

    def anonymous(self) -> Gpu:
        """Return the GPU without its identity; equal for GPUs with equal `FACTS`."""
        return dataclasses.replace(self, uuid="", index=0, pci_bus_id="", health_reason="", owner="")


_OWN: Final = {"uuid", "index", "pci_bus_id", "health_reason", "owner"}
# The properties of a GPU that others may have, too, as a tuple.
FACTS: Final = operator.attrgetter(*(field.name for field in dataclasses.fields(Gpu) if field.name not in _OWN))


@dataclasses.dataclass(frozen=True, slots=True)
class CordonNote:
    """A note on a manual cordon; each field may be empty. at: RFC 3339."""

    by: str = ""
    at: str = ""
    reason: str = ""

    def __str__(self) -> str:
        known = [f"by {self.by}"] * bool(self.by) + [f"at {self.at}"] * bool(self.at)
        return ": ".join(filter(None, (" ".join(known), self.reason)))


def read_cordon_notes(annotations: Mapping[str, Any]) -> dict[str, CordonNote]:
    """Return the notes by UUID. An annotation that is not a note counts as a reason: people write them by hand."""
    return {
        key.removeprefix(contract.CORDON_ANNOTATION_PREFIX): _read_cordon_note(str(value))
        for key, value in annotations.items()
        if key.startswith(contract.CORDON_ANNOTATION_PREFIX)
    }


def cordon_annotations(notes: Mapping[str, CordonNote | None]) -> dict[str, str | None]:
    """Return the annotations to merge into a GPUNode, by UUID of the GPU; None removes one."""
    return {
        contract.CORDON_ANNOTATION_PREFIX + uuid: json.dumps(dataclasses.asdict(note)) if note else None
        for uuid, note in notes.items()
    }


def _read_cordon_note(text: str) -> CordonNote:
    try:
        written = json.loads(text)
        return CordonNote(*(str(written[field.name]) for field in dataclasses.fields(CordonNote)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return CordonNote(reason=text)


_CLOSING: Final = {  # conditions under which no pod can start
    contract.CONDITION_DEVICES_INJECTED: contract.REASON_NOTHING_INJECTS,
    contract.CONDITION_READY: contract.REASON_AGENT_STOPPED,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A condition of the node, like a Kubernetes condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition: str = ""

    @property
    def trouble(self) -> str:
        """The problem as one word; empty if all is well."""
        good = "False" if self.type in contract.WELL_WHEN_FALSE else "True"
        if self.status == good:
            return ""
        if self.reason == contract.REASON_AGENT_STOPPED:
            return "NoAgent"
        if self.status not in {"True", "False"}:
            return f"{self.type}Unknown"
        return self.type if good == "False" else f"Not{self.type}"


@dataclasses.dataclass(frozen=True, slots=True)
class Resize:
    """The agent's report on a share that is to give up memory (`shrinkTo`), or is lent memory beyond its own."""

    allocation: str  # ID in the ledger
    share: int  # index of the share, from 0
    # The enforced limit on each of its GPUs: equal to `shrinkTo` once that is enforced, or more than the share's memory
    # while the agent lends it some.
    memory_bytes: int
    used_bytes: int  # the highest usage on any of its GPUs


@dataclasses.dataclass(frozen=True, slots=True)
class GpuNode:
    """An immutable GPUNode; a change makes a new one. `version` is the resourceVersion that a write expects."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    allocations: tuple[allocation.Allocation, ...] = ()
    cordoned: frozenset[str] = frozenset()  # UUIDs cordoned by an admin
    config: str = ""  # name of the active configuration
    conditions: tuple[Condition, ...] = ()
    resizes: tuple[Resize, ...] = ()  # one per share that is to shrink, or is lent memory
    version: str = ""
    problems: tuple[str, ...] = ()  # a sentence per invalid field of the object
    unread: tuple[Mapping[str, Any], ...] = ()  # invalid allocations, preserved on every write
    created: str = ""  # creation time, RFC 3339
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the object's
    cordon_notes: Mapping[str, CordonNote] = dataclasses.field(default_factory=dict)  # by UUID
    borrowed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # UUID → UID of the GPU's placeholder

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type, or None."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    @property
    def closed(self) -> str:
        """Why new pods cannot start here, by the agent's conditions, as a clause; empty if they can."""
        for kind, reason in _CLOSING.items():
            condition = self.condition(kind)
            if condition is not None and condition.reason == reason:
                return condition.message
        return ""

    def as_closed(self, reason: str) -> GpuNode:
        """Return the node with all GPUs closed to new pods; reason: a clause."""
        return dataclasses.replace(self, gpus=tuple(dataclasses.replace(gpu, closed=reason) for gpu in self.gpus))

    def borrowing(self, borrowed: Mapping[str, str]) -> GpuNode:
        """Return the node with these GPUs borrowed, and those of other owners closed to new pods."""
        gpus = tuple(
            dataclasses.replace(gpu, unowned=bool(gpu.owner) and borrowed.get(gpu.uuid) != gpu.owner)
            for gpu in self.gpus
        )
        return dataclasses.replace(self, gpus=gpus, borrowed=dict(borrowed))

    def lent(self) -> dict[tuple[str, int], int]:
        """Return the bytes that each share is lent on each of its GPUs, by allocation and position."""
        if not self.resizes:
            return {}
        said = {(resize.allocation, resize.share): resize.memory_bytes for resize in self.resizes}
        found = {}
        for entry in self.allocations:
            for position, share in enumerate(entry.shares):
                more_bytes = said.get((entry.id, position), 0) - share.memory_bytes
                if more_bytes > 0:
                    found[entry.id, position] = more_bytes
        return found

    def lent_by_gpu(self) -> dict[str, int]:
        """Return the bytes that are lent on each GPU to shares beyond their own, by UUID."""
        by_gpu: dict[str, int] = {}
        if loans := self.lent():
            entries = {entry.id: entry for entry in self.allocations}
            for (identity, position), lent_bytes in loans.items():
                for uuid in entries[identity].shares[position].gpu_uuids:
                    by_gpu[uuid] = by_gpu.get(uuid, 0) + lent_bytes
        return by_gpu

    def gpu_by_uuid(self) -> Mapping[str, Gpu]:
        """Return the node's GPUs by UUID."""
        return {gpu.uuid: gpu for gpu in self.gpus}
