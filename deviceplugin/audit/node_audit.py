"""Audit: what is to be said of every process on the GPUs of a node, and of every share. Values only."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Mapping

from deviceplugin.arbiter.pages import LimitsRecord
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.audit.excess import Overuse, Place
from deviceplugin.host.identity import Container
from gpushare.gpu import Gpu

ProcessIdentity = tuple[int, int]  # a process: its pid and when it started, in the kernel's ticks


@dataclasses.dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process on a GPU, as the driver lists it.

    used_bytes: None where the driver does not tell; container: None for one that is in none that is known, and
        `outside` says why.
    with_library: whether the library is mapped in it; None where that cannot be seen.
    orphaned: whether it has a ledger mapped, since before records of such were lost.
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
        """What tells it from every other process."""
        return self.pid, self.start_ticks


@dataclasses.dataclass(frozen=True, slots=True)
class SeenMember:
    """A process that is registered with a share: what it has charged on each GPU, in the order of the grants."""

    identity: ProcessIdentity
    charged_bytes: tuple[int, ...]
    with_library: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class SeenShare:
    """A share that has processes, and what their limits page says, by GPU in the order of the grants."""

    tenant: Tenant
    enforced: tuple[LimitsRecord, ...]
    members: tuple[SeenMember, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Why not everything could be seen. `blind`: a process may run unlimited there and nobody would know."""

    sentence: str
    blind: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All of it. `unreachable`: processes with a ledger that this agent cannot open; they keep their limits.

    beyond: the shares that used more of a GPU's time than they were let.
    """

    gpus: tuple[Gpu, ...]
    processes: tuple[SeenProcess, ...]
    shares: tuple[SeenShare, ...]
    unreachable: frozenset[ProcessIdentity] = frozenset()
    problems: tuple[Problem, ...] = ()
    overuse: Mapping[Place, Overuse] = dataclasses.field(default_factory=dict)


class LimitState(enum.StrEnum):
    """What a process on a GPU is held to."""

    LIMITED = "limited"  # registered with the arbiter
    UNLIMITED = "unlimited"  # of a share's container, and not registered
    FOREIGN = "foreign"  # on a fractional GPU, and of no share
    UNJUDGED = "unjudged"  # where it may be, or not known yet


@dataclasses.dataclass(frozen=True, slots=True)
class AuditedProcess:
    """A process on a GPU. Its pod and container are empty if it is in none that is known.

    place: the allocation, and the position in it, of the share that it got around.
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
        """What tells it from every other process on a GPU."""
        return self.process.gpu, self.process.identity


@dataclasses.dataclass(frozen=True, slots=True)
class AuditedShare:
    """A share on one GPU: what the GPUNode gives it, and what is enforced, which is None while it has no process.

    beyond: what it used of the GPU's time, if that is more than it was let.
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
        """What its processes hold beyond what they have charged."""
        return self.enforced.overhead_bytes if self.enforced is not None else 0

    @property
    def beyond_bytes(self) -> int:
        """How much more is counted than it may hold."""
        limit_bytes = self.enforced.memory_bytes if self.enforced is not None else self.limit_bytes
        return max(0, self.charged_bytes + self.overhead_bytes - limit_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAudit:
    """The node at one moment. `suspects`: what will be said of it if the next look shows the same."""

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[AuditedProcess, ...] = ()
    shares: tuple[AuditedShare, ...] = ()
    problems: tuple[Problem, ...] = ()
    suspects: frozenset[Hashable] = frozenset()

    def in_state(self, state: LimitState) -> tuple[AuditedProcess, ...]:
        """The processes with this state."""
        return tuple(process for process in self.processes if process.state is state)

    def label(self, uuid: str) -> str:
        """A GPU in a sentence."""
        index = next((gpu.index for gpu in self.gpus if gpu.uuid == uuid), None)
        return f"GPU {uuid}" if index is None else f"GPU {index} ({uuid})"
