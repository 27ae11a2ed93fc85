"""The audit's observations of a moment, and its results for every process and share. Values only."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Mapping

from deviceplugin.arbiter.pages import LimitsRecord
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.audit.excess import Overuse, Place
from deviceplugin.host.identity import Container
from gpushare.gpu import Gpu

ProcessIdentity = tuple[int, int]  # a process's pid and start time in kernel ticks


@dataclasses.dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process on a GPU, as the driver lists it.

    used_bytes: None if the driver does not report it. container: None if it is in no known container; `outside` says
    why. with_library: whether the library is mapped; None if unknown. orphaned: whether it maps a ledger from before
    the ledger records were lost.
    """

    gpu: str
    pid: int
    start_ticks: int
    name: str
    used_bytes: int | None
    container: Container | None
    with_library: bool | None
    orphaned: bool = False
    outside: str = ""

    @property
    def identity(self) -> ProcessIdentity:
        """The pid and start time, which identify the process even after its pid is reused."""
        return self.pid, self.start_ticks


@dataclasses.dataclass(frozen=True, slots=True)
class SeenMember:
    """A process registered with a share. charged_bytes: its charges on each GPU, in the order of the grants."""

    identity: ProcessIdentity
    charged_bytes: tuple[int, ...]
    with_library: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class SeenShare:
    """A share that has processes. enforced: its limits page, by GPU in the order of the grants."""

    tenant: Tenant
    enforced: tuple[LimitsRecord, ...]
    members: tuple[SeenMember, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Why the audit is incomplete. blind: whether it could miss an unlimited process."""

    sentence: str
    blind: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All observations of one scan.

    unreachable: processes with a ledger that this agent cannot open; they keep their limits. overuse: shares that used
    more of a GPU's time than allowed.
    """

    gpus: tuple[Gpu, ...]
    processes: tuple[SeenProcess, ...]
    shares: tuple[SeenShare, ...]
    unreachable: frozenset[ProcessIdentity] = frozenset()
    problems: tuple[Problem, ...] = ()
    overuse: Mapping[Place, Overuse] = dataclasses.field(default_factory=dict)


class LimitState(enum.StrEnum):
    """Whether and how a process on a GPU is limited."""

    LIMITED = "limited"  # registered with the arbiter
    UNLIMITED = "unlimited"  # in a share's container but not registered
    FOREIGN = "foreign"  # on a fractional GPU without a share
    UNJUDGED = "unjudged"  # allowed there, or not decided yet


@dataclasses.dataclass(frozen=True, slots=True)
class AuditedProcess:
    """A process on a GPU and its state. Pod and container are empty if unknown.

    place: the allocation, and the position in it, of the share that the process bypassed.
    """

    process: SeenProcess
    state: LimitState
    namespace: str = ""
    pod: str = ""
    container: str = ""
    charged_bytes: int = 0
    reason: str = ""
    place: tuple[str, int] | None = None

    @property
    def key(self) -> Hashable:
        """A key that identifies the process on its GPU."""
        return self.process.gpu, self.process.identity


@dataclasses.dataclass(frozen=True, slots=True)
class AuditedShare:
    """A share on one GPU: the GPUNode's limits, and the enforced ones (None while it has no process).

    overuse: its use of the GPU's time, if that exceeds the allowed time.
    """

    namespace: str
    pod: str
    containers: tuple[str, ...]
    gpu: str
    request_percent: int
    limit_percent: int
    limit_bytes: int
    enforced: LimitsRecord | None = None
    charged_bytes: int = 0
    processes: int = 0
    with_library: int = 0
    in_force: bool = True
    reason: str = ""
    overuse: Overuse | None = None

    @property
    def overhead_bytes(self) -> int:
        """The memory that its processes use beyond their charges."""
        return self.enforced.overhead_bytes if self.enforced is not None else 0

    @property
    def beyond_bytes(self) -> int:
        """The bytes by which charges and overhead exceed the limit."""
        limit_bytes = self.enforced.memory_bytes if self.enforced is not None else self.limit_bytes
        return max(0, self.charged_bytes + self.overhead_bytes - limit_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAudit:
    """The result of an audit. suspects: findings to report if the next audit confirms them."""

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[AuditedProcess, ...] = ()
    shares: tuple[AuditedShare, ...] = ()
    problems: tuple[Problem, ...] = ()
    suspects: frozenset[Hashable] = frozenset()

    def in_state(self, state: LimitState) -> tuple[AuditedProcess, ...]:
        """Return the processes with this state."""
        return tuple(process for process in self.processes if process.state is state)

    def label(self, uuid: str) -> str:
        """Return a GPU's name for sentences."""
        index = next((gpu.index for gpu in self.gpus if gpu.uuid == uuid), None)
        return f"GPU {uuid}" if index is None else f"GPU {index} ({uuid})"
