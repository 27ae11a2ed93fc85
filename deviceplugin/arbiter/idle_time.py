"""Decides when the GPU of a gang that has nothing to launch there is lent to other shares.

A borrower takes a while to give the GPU back, and the gang waits for that on all its GPUs. So only a gap of a certain
length is worth lending, and earlier gaps predict the next one: after a short gap the GPU stays reserved for twice as
long as that gap, and each long gap halves the reservation. Pure: times are in nanoseconds.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class IdleTime:
    """The gaps of a gang's member in its turns. `worth_ns`: the shortest gap that is worth lending."""

    since_ns: int | None = None
    patience_ns: int = 0

    def begin(self, now_ns: int) -> None:
        """Start a gap."""
        self.since_ns = now_ns

    def end(self, now_ns: int, worth_ns: int) -> None:
        """End the gap, if there is one: the member has work again."""
        if self.since_ns is None:
            return
        gap_ns = now_ns - self.since_ns
        self.patience_ns = max(self.patience_ns, 2 * gap_ns) if gap_ns < worth_ns else self.patience_ns // 2
        self.since_ns = None

    def interrupt(self, now_ns: int, worth_ns: int) -> None:
        """End the gap with the turn. It might have grown longer, so a short one predicts nothing."""
        if self.since_ns is not None and now_ns - self.since_ns >= worth_ns:
            self.patience_ns //= 2
        self.since_ns = None

    def lent_from_ns(self, now_ns: int, least_ns: int, worth_ns: int) -> int:
        """Return when other shares may borrow the GPU; least_ns: no sooner than so long after the gap began."""
        if self.since_ns is None:
            return now_ns
        return self.since_ns + max(least_ns, min(self.patience_ns, worth_ns))
