"""Refusal: why a pod cannot be placed, as a value; the same sentence in webhook answer, Event, annotation and CLI."""

from __future__ import annotations

import dataclasses
import enum
import math


class Cause(enum.StrEnum):
    """Why a pod waits for another reason than filters that rejected all GPUs."""

    GATE = "gate"  # another controller's scheduling gate
    GROUP = "group"  # its gang is incomplete
    HOLD = "hold"  # the capacity is kept for another waiting pod: by backfill or preemption
    LEDGER = "ledger"  # the ledger or the pod could not be written, or other writers were faster
    NO_GPU = "no-gpu"  # no GPU is known
    PREEMPTS = "preempts"  # pods of lower priority are evicted for it, and have not ended yet
    REFUSED = "refused"  # the API server rejects its ungating
    QUOTA = "quota"  # a ResourceQuota of its namespace leaves too little
    UNCLAIMED = "unclaimed"  # too much is reserved for pods of its namespace that have not appeared
    TURN = "turn"  # other pods of its namespace are tried first
    REQUEST = "request"  # its annotations are no longer valid


@dataclasses.dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate (a GPU, or a whole node if `gpu_index` is None) and the rule that rejected it."""

    node: str
    gpu_index: int | None
    rule: str  # mode, health, cordon, memory, compute, model, …
    detail: str  # a clause with numbers: "has 16Gi of 80Gi free"
    shortfall: float = 1.0  # distance from fitting, 0 (nearly fits) to 1 and more, to find the nearest miss

    def __str__(self) -> str:
        where = self.node if self.gpu_index is None else f"{self.node}/{self.gpu_index}"
        return f"{where} {self.detail}"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod gets no placement."""

    reason: str  # the sentence
    rejected: tuple[Rejected, ...] = ()
    cause: Cause | None = None  # set if no filter is the reason
    lasts: bool = False  # whether waiting cannot change it
    together: int = 1  # how many waiting pods of its gang have to fit at the same time

    @property
    def shortfall(self) -> float:
        """The distance of the nearest miss from fitting; infinite without one."""
        return min((rejected.shortfall for rejected in self.rejected), default=math.inf)

    @property
    def word(self) -> str:
        """The reason as one word, for metrics: the cause, or the rule of the nearest miss."""
        if self.cause is not None:
            return self.cause.value
        return min(self.rejected, key=lambda rejected: rejected.shortfall).rule if self.rejected else "unknown"

    def __str__(self) -> str:
        return self.reason
