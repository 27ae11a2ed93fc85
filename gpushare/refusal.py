"""Refusal: why a pod cannot be placed, as a value; the same sentence in webhook answer, Event, annotation and CLI."""

from __future__ import annotations

import dataclasses


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
    """No placement. `reason` is the sentence; `rejected` has every candidate."""

    reason: str
    rejected: tuple[Rejected, ...] = ()

    def __str__(self) -> str:
        return self.reason
