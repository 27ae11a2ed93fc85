"""What the agent and the arbiter's process tell each other, to and from bytes. Pure.

The agent knows the cluster and the driver, the arbiter the processes and their ledgers. Both are of one release, so the
messages have no versions. Each is answered, if at all, in the order in which they were sent.

    agent → arbiter                                  arbiter → agent
    Entry, NoEntry   the GPUNode's allocations       Listening    processes can connect
    Follow           give them that; Followed        Changed      something to be said of resizes
    Identified       answers Identify                Identify     who is this container?
    Contexts, Overheads, Measured, ShareActivities   by the audit   Unspoken     a library speaks another protocol
    Unclaimed        answers Measure                 Measure      what of a GPU does nobody hold?
    Report           what is there?                  Share, NoShare, Turns, Reported   answer Report
"""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any, Final

from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.disk import records
from deviceplugin.host.identity import Container
from gpushare.allocation import Allocation
from gpushare.gpunode import Resize


@dataclasses.dataclass(frozen=True, slots=True)
class HasAllocation:
    """The GPUNode has this allocation, from now on as it is here."""

    allocation: Allocation


@dataclasses.dataclass(frozen=True, slots=True)
class AllocationGone:
    """It has the allocation with this id no more."""

    allocation: str


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyAllocations:
    """That is all of the GPUNode, with what its status says of resizes: shares are to be given what it says."""

    resizes: tuple[Resize, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ResizesApplied:
    """It was done; its status is to say this of resizes."""

    resizes: tuple[Resize, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """There may be something else to be said of resizes than the status says."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArbiterReady:
    """Processes can connect; what an earlier arbiter left was taken over."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identify:
    """What was this container given?"""

    container: Container


@dataclasses.dataclass(frozen=True, slots=True)
class GpuSize:
    """All memory of a GPU."""

    gpu: str
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Identified:
    """A share and the size of its GPUs, or, as a sentence for its processes, why it has none."""

    container: Container
    tenant: Tenant | None
    refusal: str = ""
    gpus: tuple[GpuSize, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What is to be charged for a context on a GPU before it is made."""

    gpu: str
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ContextCharges:
    """What is to be charged for contexts from now on, of these GPUs."""

    contexts: tuple[Context, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Overhead:
    """What a process holds beyond its charges, by GPU in the order of the grants."""

    pid: int
    start_ticks: int
    held_bytes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareOverheads:
    """The same of all processes of a share, by its key."""

    share: str
    processes: tuple[Overhead, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """From now on it is known what processes hold beyond their charges: shares may give up memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShareActivity:
    """Whether the driver has run anything of a share, by its key, on a GPU lately."""

    gpu: str
    share: str
    active: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ShareActivities:
    """The same of all shares that were looked at."""

    activities: tuple[ShareActivity, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryRefused:
    """A process of this container was refused, in these words: its library speaks none of our versions."""

    container: Container
    sentence: str


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """How much of a GPU, by its place in a share, does nobody hold beside this process of the share?"""

    number: int
    share: str
    pid: int
    start_ticks: int
    gpu: int


@dataclasses.dataclass(frozen=True, slots=True)
class UnclaimedMemory:
    """So much, by the number of the question; None: that is unknown."""

    number: int
    memory_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Tell what has changed since the last report. turns: with what every share has had of its GPUs."""

    turns: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerMember:
    """A process that has a slot of a ledger."""

    slot: int
    pid: int
    start_ticks: int


@dataclasses.dataclass(frozen=True, slots=True)
class RunningShareState:
    """A share that has processes, as it is now; with the descriptors of limits and ledger if it is a new one."""

    tenant: Tenant
    members: tuple[LedgerMember, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShareGone:
    """The share with this key has no process any more."""

    share: str


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseReport:
    """What a share has had of a GPU: `gpu_leases.Held`, with the share's key in place of the share."""

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
    """Some of them; together those of a report are all there are."""

    turns: tuple[LeaseReport, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ProtocolVersion:
    """How many connections speak a version of the protocol."""

    version: int
    connections: int


@dataclasses.dataclass(frozen=True, slots=True)
class Reported:
    """The end of a report. unreachable: pid and start of the processes whose ledgers cannot be opened."""

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
    """The message as bytes."""
    return json.dumps([type(message).__name__, records.write(message)], separators=(",", ":")).encode()


def read(data: bytes) -> Message:
    """The message that was written. Raises ValueError."""
    said = records.loads(data)
    records.check(isinstance(said, list) and len(said) == 2, "a message is its name and what it says")
    name, document = said
    if not isinstance(name, str) or name not in _KINDS:
        raise ValueError(f"there is no message {name!r}")
    message: Message = records.read(_KINDS[name], document)
    return message
