"""What processes hold on a GPU beyond what they have charged: contexts, modules, the driver's rounding. Pure.

The driver's figure and the ledger's cannot be read in one moment. The ledger is read before the driver and after, and
the higher one counts; of two looks the lower surplus counts. So what is allocated or freed between two reads is not
taken for overhead, and what is there to stay is counted from the second look on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final

from deviceplugin.audit.seen import Who

LOOKS_TO_MEASURE: Final = 2
# A context takes a moment to be made; what is learned of one is from the third look at it on.
LOOKS_TO_LEARN: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One process on one GPU: what the driver says it holds, and what it had charged before and after that.

    expected_bytes: what it had been told to charge for a context.
    """

    used_bytes: int
    charged_before_bytes: int
    charged_after_bytes: int
    expected_bytes: int = 0

    @property
    def surplus_bytes(self) -> int:
        """What it holds beyond its charges; negative if it has charged more than it holds."""
        return self.used_bytes - max(self.charged_before_bytes, self.charged_after_bytes)


Key = tuple[str, Who]  # the UUID of a GPU, and a process on it


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    looks: int
    last: Reading
    overhead_bytes: int


class Overheads:
    """From look to look. `learned`: what a context took, of the processes for which that became known by the last."""

    def __init__(self) -> None:
        self._known: Mapping[Key, _Known] = {}
        self.learned: Mapping[Key, int] = {}

    def look(self, readings: Mapping[Key, Reading], silent: Collection[str] = ()) -> None:
        """Take the readings of one look; GPUs that gave none this time, `silent`, keep what they had."""
        known = {key: overhead for key, overhead in self._known.items() if key[0] in silent}
        learned = {}
        for key, now in readings.items():
            before = self._known.get(key)
            known[key] = _Known(
                looks=before.looks + 1 if before is not None else 1,
                last=now,
                overhead_bytes=max(0, min(before.last.surplus_bytes, now.surplus_bytes)) if before is not None else 0,
            )
            if before is not None and known[key].looks == LOOKS_TO_LEARN:
                context_bytes = min(before.last.surplus_bytes, now.surplus_bytes) + now.expected_bytes
                if context_bytes > 0 and before.last.expected_bytes == now.expected_bytes:
                    learned[key] = context_bytes
        self._known, self.learned = known, learned

    def of(self, key: Key) -> int:
        """What a process holds on a GPU beyond its charges, in bytes."""
        return self._known[key].overhead_bytes if key in self._known else 0
