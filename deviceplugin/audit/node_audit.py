"""Audit: what is to be said of every process on the GPUs of a node, and of every share. Values only."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable

from deviceplugin.arbiter.ledgers.pages import LimitsRecord
from deviceplugin.audit.excess import Beyond
from deviceplugin.audit.seen import Problem, SeenProcess
from gpushare.gpu import Gpu


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
        return self.process.gpu, self.process.who


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
    beyond: Beyond | None = None

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

    def of(self, state: LimitState) -> tuple[AuditedProcess, ...]:
        """The processes with this state."""
        return tuple(process for process in self.processes if process.state is state)

    def label(self, uuid: str) -> str:
        """A GPU in a sentence."""
        index = next((gpu.index for gpu in self.gpus if gpu.uuid == uuid), None)
        return f"GPU {uuid}" if index is None else f"GPU {index} ({uuid})"
