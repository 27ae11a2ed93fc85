"""Decides which Events are worth a call to the API server. Pure, but for the random names.

A repetition must cost next to nothing: a waiting pod has the same reason every second. The first occurrence makes an
Event; repetitions are counted, and the Event's series is updated once in a while. A sentence that differs a little each
time (free bytes, on a busy cluster) must not become a stream of Events either: for one object and reason, the first few
different sentences pass, and after them a slow, steady rate.
"""

from __future__ import annotations

import collections
import secrets
from dataclasses import dataclass
from typing import Final, Literal

UPDATE_SECONDS: Final = 600.0  # how often a series is updated while its event keeps occurring
FORGET_SECONDS: Final = 1800.0  # after this silence the same sentence counts as new
BURST: Final = 10.0  # different sentences about one object and reason; after them one
TOKEN_SECONDS: Final = 60.0  # per this time
MAX_SERIES: Final = 4096
NAME_CHARACTERS: Final = 253  # the API's limit

EventType = Literal["Normal", "Warning"]
Regarding = tuple[tuple[str, str], ...]  # a reference as pairs, so that it is hashable


@dataclass(frozen=True, slots=True)
class Event:
    """One occurrence at one object.

    regarding: a reference: apiVersion, kind, namespace (none for cluster-scoped), name, uid. reason: CamelCase, from
    `contract`. action: our action, a CamelCase verb. note: a sentence.
    """

    regarding: Regarding
    reason: str
    note: str
    type: EventType = "Normal"
    action: str = "Place"


@dataclass(slots=True)
class Series:
    """An Event that was written, and how often it has occurred since."""

    name: str
    count: int
    last_at: float
    written_at: float


@dataclass(slots=True)
class _TokenBucket:
    stock: float
    at: float


_Subject = tuple[Regarding, str]


class EventDeduplicator:
    """The recent series. Times are seconds of one monotonic clock.

    most: the number of series kept; beyond it, the one that has been silent longest is dropped.
    """

    def __init__(self, *, most: int = MAX_SERIES) -> None:
        self._series: collections.OrderedDict[Event, Series] = collections.OrderedDict()
        self._buckets: collections.OrderedDict[_Subject, _TokenBucket] = collections.OrderedDict()
        self._most = most
        self.withheld = 0  # different sentences that came too fast

    def __len__(self) -> int:
        return len(self._series)

    def happened(self, event: Event, now: float) -> Series | None:
        """Count `event`; return its series if it should be written now, else None.

        A series whose count is 1 is to be created, one with more is to be updated.
        """
        series = self._series.get(event)
        if series is None or now - series.last_at >= FORGET_SECONDS:
            if not self._take_token((event.regarding, event.reason), now):
                self.withheld += 1
                return None
            series = Series(name=_event_name(event), count=0, last_at=now, written_at=now - UPDATE_SECONDS)
            self._series[event] = series
        self._series.move_to_end(event)
        series.count += 1
        series.last_at = now
        if len(self._series) > self._most:
            self._series.popitem(last=False)
        if now - series.written_at < UPDATE_SECONDS:
            return None
        series.written_at = now
        return series

    def _take_token(self, subject: _Subject, now: float) -> bool:
        """Spend one of the subject's tokens for new sentences, if any is left."""
        news = self._buckets.setdefault(subject, _TokenBucket(BURST, now))
        self._buckets.move_to_end(subject)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        news.stock = min(BURST, news.stock + (now - news.at) / TOKEN_SECONDS)
        news.at = now
        if news.stock < 1.0:
            return False
        news.stock -= 1.0
        return True

    def forget(self, event: Event) -> None:
        """Treat the next `event` as new, because the API server does not have it."""
        self._series.pop(event, None)


def _event_name(event: Event) -> str:
    suffix = f".{secrets.token_hex(8)}"
    return dict(event.regarding)["name"][: NAME_CHARACTERS - len(suffix)] + suffix
