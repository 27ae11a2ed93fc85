"""Events that wake the agent's reconcile loops.

They exist before all other parts of the agent, so a part that notices a change need not know which loops it concerns.
"""

from __future__ import annotations

import asyncio
import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Wake:
    """The events that wake the reconcile loops, one for each loop."""

    modes: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    labels: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    status: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def all(self) -> None:
        """Wake all loops, after a change that may concern modes, labels and status."""
        for event in (self.modes, self.labels, self.status):
            event.set()
