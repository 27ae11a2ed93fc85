"""Allocation: the shares given to one pod on the GPUs of one node."""

from __future__ import annotations

import dataclasses

from gpushare import contract


@dataclasses.dataclass(frozen=True, slots=True)
class PodRef:
    """Who holds an allocation. `name` is empty while unknown (`generateName`), `uid` until the pod has been seen."""

    namespace: str
    name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name or '<not-yet-named>'}"


@dataclasses.dataclass(frozen=True, slots=True)
class Labels:
    """Locality on the same GPU: the three annotations' values, empty when not given."""

    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class GivenShare:
    """A share given: the same amounts on each of `gpu_uuids`, used together by `containers`."""

    containers: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    request_percent: int
    limit_percent: int
    memory_bytes: int  # what counts, also while it shrinks
    shrink_to_bytes: int | None = None  # less memory is asked for: given up once the agent holds the pod to it


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
    def is_hold(self) -> bool:
        """Whether it is no share given, but what is kept free for a gated pod that has waited too long."""
        return self.id.startswith(contract.HOLD_PREFIX)

    @property
    def is_unclaimed(self) -> bool:
        """Whether it is reserved for a pod that has yet to come, and ends if it does not."""
        return self.reserved_until is not None and not self.is_hold

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """Every GPU it is on, once each, in the order given."""
        return tuple(dict.fromkeys(uuid for share in self.shares for uuid in share.gpu_uuids))


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAllocation:
    """An allocation and the name of its node."""

    node: str
    allocation: Allocation
