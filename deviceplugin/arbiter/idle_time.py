"""How long a GPU stays kept for a gang that has nothing to launch there, before other shares borrow it.

A borrower takes a while to give the GPU back, and the gang waits for that on all of its GPUs. So a gap has to be long
enough to be worth it, and the gaps before tell whether this one will be: after a short gap the GPU stays kept for twice
as long as that one was, and each long gap halves it again. Pure: times are in nanoseconds.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class IdleTime:
    """A member's gaps: when it has no work in its gang's turn. `worth_ns`: the shortest that is worth lending for."""

    since_ns: int | None = None
    patience_ns: int = 0

    def begin(self, now_ns: int) -> None:
        """Start a gap."""
        self.since_ns = now_ns

    def end(self, now_ns: int, worth_ns: int) -> None:
        """End the gap, if there is one, because the member has work again."""
        if self.since_ns is None:
            return
        gap_ns = now_ns - self.since_ns
        self.patience_ns = max(self.patience_ns, 2 * gap_ns) if gap_ns < worth_ns else self.patience_ns // 2
        self.since_ns = None

    def interrupt(self, now_ns: int, worth_ns: int) -> None:
        """End the gap with the turn. Without that it might have been longer, so a short one says nothing."""
        if self.since_ns is not None and now_ns - self.since_ns >= worth_ns:
            self.patience_ns //= 2
        self.since_ns = None

    def lent_from_ns(self, now_ns: int, least_ns: int, worth_ns: int) -> int:
        """When others may have the GPU."""
        if self.since_ns is None:
            return now_ns
        return self.since_ns + max(least_ns, min(self.patience_ns, worth_ns))
