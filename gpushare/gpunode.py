"""GpuNode: one node's GPUs and the allocations on them; all GpuNodes together are the ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from gpushare import allocation, contract, gpu
from gpushare.cordon_note import CordonNote

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
    """The agent's report on a share that is to give up memory (`shrinkTo`)."""

    allocation: str  # ID in the ledger
    share: int  # index of the share, from 0
    memory_bytes: int  # the enforced limit on each of its GPUs; equal to `shrinkTo` once that is enforced
    used_bytes: int  # the highest usage on any of its GPUs


@dataclasses.dataclass(frozen=True, slots=True)
class GpuNode:
    """An immutable GPUNode; a change makes a new one. `version` is the resourceVersion that a write expects."""

    name: str
    gpus: tuple[gpu.Gpu, ...] = ()
    allocations: tuple[allocation.Allocation, ...] = ()
    cordoned: frozenset[str] = frozenset()  # UUIDs cordoned by an admin
    config: str = ""  # name of the active configuration
    conditions: tuple[Condition, ...] = ()
    resizes: tuple[Resize, ...] = ()  # one per share that is to shrink, once the agent has seen it
    version: str = ""
    problems: tuple[str, ...] = ()  # a sentence per invalid field of the object
    unread: tuple[Mapping[str, Any], ...] = ()  # invalid allocations, preserved on every write
    created: str = ""  # creation time, RFC 3339
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the object's
    cordon_notes: Mapping[str, CordonNote] = dataclasses.field(default_factory=dict)  # by UUID

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

    def gpu_by_uuid(self) -> Mapping[str, gpu.Gpu]:
        """Return the node's GPUs by UUID."""
        return {gpu.uuid: gpu for gpu in self.gpus}
