"""The compute and memory requested of a GPU, and the shares given to one pod on the GPUs of one node.

Init containers run one after another before the app containers, so a pod's shares need not all be in use at once. A GPU
holds the peak, which is also what kube-scheduler counts for a resource:
https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypedDict, TypeVar

from gpushare import contract, quantity

TO_THE_END: Final = 1 << 16  # more steps than a pod can have containers


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Requested device memory: a number of bytes, or a percentage of the GPU that is chosen."""

    bytes: int | None = None
    percent: int | None = None  # of the GPU's memory, 0 to 100; used if `bytes` is None

    def on(self, total_bytes: int) -> int:
        """Return the bytes on a GPU with `total_bytes`, rounded down so that parts never exceed the whole."""
        return self.bytes if self.bytes is not None else total_bytes * (self.percent or 0) // 100

    def on_all(self, totals_bytes: Iterable[int]) -> int:
        """Return the bytes on each of several GPUs of one share; a percentage counts for the smallest GPU."""
        return min(map(self.on, totals_bytes))

    def __str__(self) -> str:
        return quantity.format_bytes(self.bytes) if self.bytes is not None else f"{self.percent}% of the memory"


class ShareAmounts(TypedDict):
    """The amounts of a share that is given, as fields of `GivenShare`."""

    request_percent: int
    limit_percent: int
    memory_bytes: int
    memory_limit_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Compute and memory requested of one GPU."""

    request_percent: int  # guaranteed; 0 to 100, at most the limit
    limit_percent: int  # the ceiling while other shares are idle
    memory: Memory  # guaranteed; a hard limit without `memory_limit`
    memory_limit: Memory | None = None  # the ceiling, for what is free beyond all requests

    def on_all(self, totals_bytes: Sequence[int]) -> ShareAmounts:
        """Return the amounts on each of several GPUs with this much memory."""
        memory_bytes = self.memory.on_all(totals_bytes)
        limit_bytes = 0 if self.memory_limit is None else self.memory_limit.on_all(totals_bytes)
        return {
            "request_percent": self.request_percent,
            "limit_percent": self.limit_percent,
            "memory_bytes": memory_bytes,
            "memory_limit_bytes": limit_bytes if limit_bytes > memory_bytes else None,
        }

    def __str__(self) -> str:
        compute = f"{quantity.format_compute(self.request_percent)} GPU" if self.request_percent else "idle compute"
        more = f" (limit {self.memory_limit})" if self.memory_limit is not None else ""
        return f"{compute} with {self.memory}{more}"


@dataclasses.dataclass(frozen=True, slots=True)
class PodRef:
    """The pod of an allocation. `name` is empty while unknown (`generateName`), `uid` until the pod has been seen."""

    namespace: str
    name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name or '<not-yet-named>'}"


class Isolation(enum.StrEnum):
    """The mechanism that enforces a share's limits. All shares on one GPU have the same."""

    ARBITER = "arbiter"  # leases in time, by the library
    MPS = "mps"  # in space, as a client of the GPU's MPS daemon
    MIG = "mig"  # its own MIG device
    NONE = "none"  # counted, but not enforced


ONLY_ARBITER: Final = (Isolation.ARBITER,)  # what a GPU offers unless its configuration says more


@dataclasses.dataclass(frozen=True, slots=True)
class Labels:
    """The properties that other pods on the same GPU are checked against: locality annotations and isolation."""

    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    isolation: Isolation = Isolation.ARBITER


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a pod's start during which a share is in use, from `first` to `last` inclusive.

    Steps that do not change which shares are in use are merged, so most shares have `ALL_STEPS`.
    """

    first: int = 0
    last: int = TO_THE_END

    def meets(self, other: Steps) -> bool:
        """Whether both are in use at the same time."""
        return self.first <= other.last and other.first <= self.last


ALL_STEPS: Final = Steps()


@dataclasses.dataclass(frozen=True, slots=True)
class MigInstance:
    """The GPU instance of a share with the isolation mig: its place on the GPU, and what it takes of it."""

    profile: str  # such as 1g.10gb
    start: int  # its first memory slice
    memory_slices: int
    compute_percent: int  # of the GPU's compute, rounded down, so that all instances together take 100 at most
    memory_bytes: int

    @property
    def places(self) -> range:
        """The memory slices that it occupies."""
        return range(self.start, self.start + self.memory_slices)

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


@dataclasses.dataclass(frozen=True, slots=True)
class GivenShare:
    """A share given: the same amounts on each of `gpu_uuids`, used together by `containers`."""

    containers: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    request_percent: int
    limit_percent: int
    memory_bytes: int  # counted in full while the share shrinks
    shrink_to_bytes: int | None = None  # desired smaller size; freed once the agent enforces it
    steps: Steps = ALL_STEPS
    memory_limit_bytes: int | None = None  # more than `memory_bytes`: the agent may lend it up to this, see `lending`
    mig: MigInstance | None = None  # for the isolation mig

    @property
    def held_percent(self) -> int:
        """The compute that no other share can request: of a MIG device, all of it."""
        return self.request_percent if self.mig is None else self.mig.compute_percent

    @property
    def held_bytes(self) -> int:
        """The memory that no other share can have: of a MIG device, all of it."""
        return self.memory_bytes if self.mig is None else self.mig.memory_bytes

    @property
    def ends_early(self) -> bool:
        """Whether only init containers use it, so that the pod outlives it."""
        return self.steps.last < TO_THE_END


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """One pod's entry in the ledger."""

    id: str
    pod: PodRef
    shares: tuple[GivenShare, ...]
    reserved_until: float | None = None  # Unix seconds; None once the pod has been seen
    labels: Labels = Labels()
    latency: bool = False

    @property
    def is_backfill_reservation(self) -> bool:
        """Whether it is a backfill reservation: capacity kept for a gated pod, by backfill or preemption."""
        return self.id.startswith(contract.BACKFILL_PREFIX)

    @property
    def is_nomination(self) -> bool:
        """Whether it is a backfill reservation of a pod for which others of lower priority are evicted."""
        return self.id.startswith(contract.PREEMPTION_PREFIX)

    @property
    def is_unclaimed(self) -> bool:
        """Whether its pod has not been seen yet; the reservation expires if it never is."""
        return self.reserved_until is not None and not self.is_backfill_reservation

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs, without duplicates, in order."""
        return tuple(dict.fromkeys(uuid for share in self.shares for uuid in share.gpu_uuids))


def slot(entry: Allocation, share: GivenShare) -> str:
    """Return a name for a share on its GPUs, which shares of the pod may have in common if never in use together."""
    members: list[list[GivenShare]] = []
    for one in entry.shares:
        if not {*one.gpu_uuids}.intersection(share.gpu_uuids):
            continue
        numbers = (n for n, there in enumerate(members) if not any(one.steps.meets(other.steps) for other in there))
        number = next(numbers, len(members))
        if number == len(members):
            members.append([])
        members[number].append(one)
        if one == share:
            return f"{entry.id}/{number}"
    raise ValueError(f"{entry.id} has no such share")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAllocation:
    """An allocation and the name of its node."""

    node: str
    allocation: Allocation


class _Stepped(Protocol):
    @property
    def steps(self) -> Steps: ...


_Share = TypeVar("_Share", bound=_Stepped)


def moments(shares: Iterable[_Share], during: Steps = ALL_STEPS) -> list[list[_Share]]:
    """Return the groups of a pod's shares that are in use together, one for each moment that could be the peak."""
    there = [share for share in shares if share.steps.meets(during)]
    starts = {max(share.steps.first, during.first) for share in there}
    return [[share for share in there if share.steps.first <= start <= share.steps.last] for start in starts]


def peak(shares: Iterable[_Share], amount: Callable[[_Share], int], during: Steps = ALL_STEPS) -> int:
    """Return the peak of an amount over a pod's shares, while `during` lasts."""
    return max((sum(map(amount, together)) for together in moments(shares, during)), default=0)
