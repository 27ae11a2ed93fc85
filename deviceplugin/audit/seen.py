"""What was seen at one moment: the processes on the GPUs, and the shares that have processes. Values only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from deviceplugin.arbiter.ledgers.pages import LimitsRecord
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.audit.excess import Beyond, Place
from deviceplugin.host.identity import Container
from gpushare.gpu import Gpu

Who = tuple[int, int]  # a process: its pid and when it started, in the kernel's ticks


@dataclasses.dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process on a GPU, as the driver lists it.

    used_bytes: None where the driver does not tell; container: None for one that is in none that is known, and
        `outside` says why.
    with_library: whether the library is mapped in it; None where that cannot be seen.
    left_behind: whether it has a ledger mapped, since before records of such were lost.
    """

    gpu: str
    pid: int
    start_ticks: int
    name: str
    used_bytes: int | None
    container: Container | None
    with_library: bool | None
    left_behind: bool = False
    outside: str = ""

    @property
    def who(self) -> Who:
        """What tells it from every other process."""
        return self.pid, self.start_ticks


@dataclasses.dataclass(frozen=True, slots=True)
class SeenMember:
    """A process that is registered with a share: what it has charged on each GPU, in the order of the grants."""

    who: Who
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
    unreachable: frozenset[Who] = frozenset()
    problems: tuple[Problem, ...] = ()
    beyond: Mapping[Place, Beyond] = dataclasses.field(default_factory=dict)
