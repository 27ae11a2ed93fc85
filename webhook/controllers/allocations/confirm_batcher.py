"""ConfirmBatcher: confirmations wait for each other, so that those of a burst share one write after it. Pure.

A confirmation is in no hurry: the reservation holds for much longer. But a write of a GPUNode costs the API server the
same whatever it carries, and while pods pour onto a node it stands in the way of theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from gpushare.allocation import PodRef

QUIET_SECONDS: Final = 1.0  # since the last one came for the node
MAX_SECONDS: Final = 5.0  # since the first

Due = Mapping[str, Mapping[str, PodRef]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Pending:
    pods: Mapping[str, PodRef]
    first: float
    last: float

    @property
    def due(self) -> float:
        return min(self.last + QUIET_SECONDS, self.first + MAX_SECONDS)


class ConfirmBatcher:
    """Remembers since when each node has had something to confirm, and what."""

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}

    def ripe(self, confirm: Due, *, now: float) -> tuple[Due, float | None]:
        """Of node → id → pod what is to be written now, and when to ask again for the rest; `now` in seconds.

        A pod that went while its confirmation waited is confirmed at once: what is confirmed is released when its pod
        is gone, while a reservation that nobody claims would be kept until it lapses.
        """
        ripe: dict[str, Mapping[str, PodRef]] = {}
        pending: dict[str, _Pending] = {}
        for name in {*confirm, *self._pending}:
            pods, before = confirm.get(name, {}), self._pending.get(name)
            if before is None:
                pending[name] = _Pending(pods, now, now)
            elif before.due <= now or before.pods.keys() - pods.keys():
                ripe[name] = {**before.pods, **pods}
            elif pods.keys() == before.pods.keys():
                pending[name] = before
            else:
                pending[name] = _Pending(pods, before.first, now)
        self._pending = pending
        return ripe, min((batch.due for batch in pending.values()), default=None)
