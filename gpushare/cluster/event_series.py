"""Which Events are worth a call to the API server. Pure, except for random names.

Repeating a message must cost next to nothing: a waiting pod has the same reason every second. The first occurrence
creates an Event; repetitions are counted, and the Event's series is updated once in a while. A message that differs a
little each time (free bytes, on a busy cluster) must not become a stream of Events: for one object and reason,
different messages are sent freely at first, and then at a steady, slow rate.
"""

from __future__ import annotations

import collections
import secrets
from dataclasses import dataclass
from typing import Final, Literal

UPDATE_SECONDS: Final = 600.0  # how often a series is written while its event keeps happening
FORGET_SECONDS: Final = 1800.0  # after this silence, the same message is sent as a new Event
NEWS_AT_ONCE: Final = 10.0  # different messages about one object and reason that are sent at once; then one
NEWS_SECONDS: Final = 60.0  # per this time
MAX_SERIES: Final = 4096
NAME_CHARACTERS: Final = 253  # the API's limit

EventType = Literal["Normal", "Warning"]
Regarding = tuple[tuple[str, str], ...]  # a reference, as pairs, so that it can be a key


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one object.

    regarding: a reference: apiVersion, kind, namespace (none for cluster-scoped), name, uid. reason: CamelCase, from
    `contract`. action: our action, a CamelCase verb. note: the message.
    """

    regarding: Regarding
    reason: str
    note: str
    type: EventType = "Normal"
    action: str = "Place"


@dataclass(slots=True)
class Series:
    """An Event that was sent, and how often it has happened since."""

    name: str
    count: int
    last_at: float
    written_at: float


@dataclass(slots=True)
class _News:
    stock: float
    at: float


_Subject = tuple[Regarding, str]


class EventDeduplicator:
    """Remembers recent Events. All times are in seconds of one monotonic clock.

    most: how many series are remembered; beyond that, the least recent one is forgotten.
    """

    def __init__(self, *, most: int = MAX_SERIES) -> None:
        self._series: collections.OrderedDict[Event, Series] = collections.OrderedDict()
        self._news: collections.OrderedDict[_Subject, _News] = collections.OrderedDict()
        self._most = most
        self.withheld = 0  # different messages that came too fast

    def __len__(self) -> int:
        return len(self._series)

    def happened(self, event: Event, now: float) -> Series | None:
        """Count `event`; return its series if it is to be written to the API server now, else None.

        A series with a count of 1 is to be created; one with more is to be updated.
        """
        series = self._series.get(event)
        if series is None or now - series.last_at >= FORGET_SECONDS:
            if not self._is_welcome((event.regarding, event.reason), now):
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

    def _is_welcome(self, subject: _Subject, now: float) -> bool:
        """Whether the object and reason have budget for another message; uses it up."""
        news = self._news.setdefault(subject, _News(NEWS_AT_ONCE, now))
        self._news.move_to_end(subject)
        if len(self._news) > self._most:
            self._news.popitem(last=False)
        news.stock = min(NEWS_AT_ONCE, news.stock + (now - news.at) / NEWS_SECONDS)
        news.at = now
        if news.stock < 1.0:
            return False
        news.stock -= 1.0
        return True

    def forget(self, event: Event) -> None:
        """Send the next `event` as a new one, because the API server does not have it."""
        self._series.pop(event, None)


def _event_name(event: Event) -> str:
    suffix = f".{secrets.token_hex(8)}"
    return dict(event.regarding)["name"][: NAME_CHARACTERS - len(suffix)] + suffix
