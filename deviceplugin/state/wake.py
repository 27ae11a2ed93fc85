"""Who has to look again when something has changed: events that loops wait for.

They are there before all parts of the agent, so that whoever notices a change need not know whom it concerns.
"""

from __future__ import annotations

import asyncio
import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Wake:
    """One for each loop that compares what is with what should be."""

    modes: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    labels: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    status: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def all(self) -> None:
        """Something may have changed that concerns what GPUs are used for, labels and status."""
        for event in (self.modes, self.labels, self.status):
            event.set()
