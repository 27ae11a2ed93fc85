"""The messages between agent and arbiter, encoded as JSON. Pure.

The agent knows the cluster and the driver; the arbiter knows the processes and their ledgers. Both are always of the
same release, so the messages need no version. Answers come in the order of the questions.

    agent → arbiter                                     arbiter → agent
    HasAllocation, AllocationGone                       ArbiterReady, Changed
    ApplyAllocations                                    ResizesApplied
    Identified                                          Identify
    UnclaimedMemory                                     Measure
    Report                                              RunningShareState, ShareGone, LeaseReports, Reported
    ContextCharges, ShareOverheads, Measured,           LibraryRefused
    ShareActivities
"""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any, Final

from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.host import records
from deviceplugin.host.kernel_process import Container
from gpushare.allocation import Allocation
from gpushare.gpunode import Resize


@dataclasses.dataclass(frozen=True, slots=True)
class HasAllocation:
    """An allocation that is new in the GPUNode, or has changed."""

    allocation: Allocation


@dataclasses.dataclass(frozen=True, slots=True)
class AllocationGone:
    """The id of an allocation that is gone from the GPUNode."""

    allocation: str


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyAllocations:
    """A request to apply the allocations sent so far; `resizes` are those in the GPUNode's status."""

    resizes: tuple[Resize, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ResizesApplied:
    """The answer to ApplyAllocations: the resizes that the GPUNode's status should have."""

    resizes: tuple[Resize, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """A notice that the resizes in the GPUNode's status may be outdated."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArbiterReady:
    """A notice that the arbiter has recovered the ledgers and accepts connections."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identify:
    """A request for the share of a container."""

    container: Container


@dataclasses.dataclass(frozen=True, slots=True)
class GpuSize:
    """The total memory of a GPU."""

    gpu: str
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Identified:
    """The answer to Identify: the share and the sizes of its GPUs, or the reason for the container's processes."""

    container: Container
    tenant: Tenant | None
    refusal: str = ""
    gpus: tuple[GpuSize, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """Bytes to charge for a CUDA context on a GPU before it is created."""

    gpu: str
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ContextCharges:
    """The context charges of these GPUs, from now on."""

    contexts: tuple[Context, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Overhead:
    """Bytes that a process holds beyond its charges, by GPU in the order of the grants."""

    pid: int
    start_ticks: int
    held_bytes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareOverheads:
    """The overheads of all processes of a share, by the share's key."""

    share: str
    processes: tuple[Overhead, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A notice that overheads are known from now on, so that shares may shrink."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShareActivity:
    """Whether the driver has recently run work of a share, by its key, on a GPU."""

    gpu: str
    share: str
    active: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ShareActivities:
    """The activity of all shares that the agent has sampled."""

    activities: tuple[ShareActivity, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryRefused:
    """A notice that a process of this container was refused because of its library's protocol version."""

    container: Container
    sentence: str


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """A question: how much of a GPU's memory belongs to no process other than this one? `gpu` is its place in the
    share.
    """

    number: int
    share: str
    pid: int
    start_ticks: int
    gpu: int


@dataclasses.dataclass(frozen=True, slots=True)
class UnclaimedMemory:
    """The answer to the Measure with this number; None if unknown."""

    number: int
    memory_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A request for all changes since the last report. `turns`: include the shares' use of their GPUs."""

    turns: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerMember:
    """A process with a slot in a ledger."""

    slot: int
    pid: int
    start_ticks: int


@dataclasses.dataclass(frozen=True, slots=True)
class RunningShareState:
    """A share with processes. A new share comes with the descriptors of its limits and ledger."""

    tenant: Tenant
    members: tuple[LedgerMember, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareGone:
    """The key of a share whose last process has ended."""

    share: str


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseReport:
    """How a share has used a GPU: `gpu_leases.LeaseUsage`, with the share's key in place of the share."""

    share: str
    gpu_uuid: str
    seconds: float
    leases: int
    recent: float | None
    waited_seconds: float
    throttled_seconds: float
    evictions: int
    had_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseReports:
    """Some of a report's lease reports; long lists are sent in parts."""

    turns: tuple[LeaseReport, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ProtocolVersion:
    """The number of connections that speak a version of the protocol."""

    version: int
    connections: int


@dataclasses.dataclass(frozen=True, slots=True)
class Reported:
    """The end of a report. `unreachable`: pid and start of processes whose ledgers the arbiter cannot open."""

    connections: int
    turned_away: int
    versions: tuple[ProtocolVersion, ...]
    lost_ticks: int
    unreachable: tuple[tuple[int, int], ...]


FromAgent = (
    HasAllocation
    | AllocationGone
    | ApplyAllocations
    | Identified
    | ContextCharges
    | ShareOverheads
    | Measured
    | ShareActivities
    | UnclaimedMemory
    | Report
)
FromArbiter = (
    ArbiterReady
    | Changed
    | Identify
    | ResizesApplied
    | Measure
    | LibraryRefused
    | RunningShareState
    | ShareGone
    | LeaseReports
    | Reported
)
Message = FromAgent | FromArbiter

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in typing.get_args(Message)}


def write(message: Message) -> bytes:
    """Encode a message."""
    return json.dumps([type(message).__name__, records.to_json(message)], separators=(",", ":")).encode()


def read(data: bytes) -> Message:
    """Decode a message. Raises ValueError."""
    said = records.loads(data)
    records.check(isinstance(said, list) and len(said) == 2, "a message must be a pair of name and content")
    name, document = said
    if not isinstance(name, str) or name not in _KINDS:
        raise ValueError(f"unknown message {name!r}")
    message: Message = records.read(_KINDS[name], document)
    return message
