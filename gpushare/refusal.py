"""Refusal: why a pod cannot be placed, as a value; the same sentence in webhook answer, Event, annotation and CLI."""

from __future__ import annotations

import dataclasses
import enum


class Cause(enum.StrEnum):
    """Why a pod waits, where it is not for want of a GPU that a rule has ruled out."""

    GATE = "gate"  # somebody else's scheduling gate
    GROUP = "group"  # the rest of its gang is not there
    HOLD = "hold"  # it gives way to a pod that has waited for longer
    LEDGER = "ledger"  # the ledger, or its gate, could not be written, or others were faster
    NO_GPU = "no-gpu"  # no GPU is known at all
    REFUSED = "refused"  # the API server lets nobody open its gate
    QUOTA = "quota"  # a ResourceQuota of its namespace leaves too little
    UNCLAIMED = "unclaimed"  # too much is reserved for pods of its namespace that have not come
    TURN = "turn"  # others of its namespace are tried first
    REQUEST = "request"  # its annotations are no longer valid


@dataclasses.dataclass(frozen=True, slots=True)
class Rejected:
    """One candidate (a GPU, or a whole node when `gpu_index` is None) and the rule that ruled it out."""

    node: str
    gpu_index: int | None
    rule: str  # a word per rule: mode, health, cordon, memory, compute, model, …
    detail: str  # the rest of a sentence, with numbers: "has 16Gi of 80Gi free"
    shortfall: float = 1.0  # how far off, 0 (nearly) to 1 and more, to find the nearest miss

    def __str__(self) -> str:
        where = self.node if self.gpu_index is None else f"{self.node}/{self.gpu_index}"
        return f"{where} {self.detail}"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """No placement. `reason` is the sentence; `rejected` has every candidate; `cause` is told where no rule says it."""

    reason: str
    rejected: tuple[Rejected, ...] = ()
    cause: Cause | None = None

    @property
    def word(self) -> str:
        """The reason as a word, for those who count: the cause, or the rule of the nearest miss."""
        if self.cause is not None:
            return self.cause.value
        return min(self.rejected, key=lambda rejected: rejected.shortfall).rule if self.rejected else "unknown"

    def __str__(self) -> str:
        return self.reason
