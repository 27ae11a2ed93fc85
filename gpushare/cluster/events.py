"""Kubernetes Events: the sentences that `kubectl describe` shows under an object.

An Event must never delay or fail the work that it reports: `record` only puts it in a bounded queue. Rejected Events
are logged and dropped; those that the API server cannot take now are retried, because most occur only once. A waiting
pod has the same reason every second, so repetitions are counted, and the Event's series is updated once in a while. For
one object and reason, the first few different sentences pass, and after them a slow, steady rate.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gpushare import quantity
from gpushare.cluster import api_client, api_errors

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
            suffix = f".{secrets.token_hex(8)}"
            name = dict(event.regarding)["name"][: NAME_CHARACTERS - len(suffix)] + suffix
            series = self._series[event] = Series(name, count=0, last_at=now, written_at=now - UPDATE_SECONDS)
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


logger = logging.getLogger(__name__)

MAX_QUEUED: Final = 1024
FLUSH_PAUSE_SECONDS: Final = 0.2
NOTE_BYTES: Final = 1024  # the API's limit
INSTANCE_CHARACTERS: Final = 128  # the API's limit
# Failed writes are retried for this long; after that the Event is stale. An API server that has just started rejects
# all clients until it has read RBAC.
MAX_SECONDS: Final[Mapping[type[api_errors.ClusterError], float]] = {
    api_errors.Unavailable: 900.0,
    api_errors.Forbidden: 60.0,
}
PAUSE_SECONDS: Final = (1.0, 2.0, 4.0, 8.0)  # before each retry; the last one repeats
REFERENCE_KEYS: Final = ("apiVersion", "kind", "namespace", "name", "uid", "fieldPath")


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A queued occurrence: its count, its time by the recorder's clock, and `at` by the wall clock."""

    event: Event
    name: str
    count: int
    recorded_at: float
    at: float
    on_drop: Callable[[], None]
    trials: int = 0


class Recorder:
    """Writes recorded Events to the API server in the background.

    controller: `gpushare.io/COMPONENT`; instance: the replica, by the pod's name.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        *,
        controller: str,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._controller = controller
        self._instance = instance[:INSTANCE_CHARACTERS]
        self._clock = clock
        self._wall_clock = wall_clock
        self._told = EventDeduplicator()
        self._queue: asyncio.Queue[Recorded] = asyncio.Queue()
        self._later: dict[asyncio.TimerHandle, Recorded] = {}  # waiting for a retry
        self.dropped = 0

    def record(
        self,
        regarding: Mapping[str, Any],
        reason: str,
        note: str,
        *,
        type: EventType = "Normal",  # noqa: A002 (the API's word)
        action: str = "Place",
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        """Record an occurrence at the object `regarding` (whole, or a reference). Returns at once.

        on_drop: called if the Event could not be written in the end, for callers that report something only once.
        """
        event = Event(reference(regarding), reason, _shortened(note), type, action)
        series = self._told.happened(event, self._clock())
        if series is None:
            return
        recorded = Recorded(event, series.name, series.count, self._clock(), self._wall_clock(), on_drop)
        if self._queue.qsize() + len(self._later) >= MAX_QUEUED:
            self._drop(recorded, "the queue is full")
        else:
            self._queue.put_nowait(recorded)

    async def run(self) -> None:
        """Write recorded Events, until cancelled."""
        while True:
            await self.step()

    async def step(self) -> None:
        """Wait for one recorded Event and write it, or queue it for a retry. Never raises ClusterError."""
        recorded = await self._queue.get()
        try:
            await self._write(recorded)
        except api_errors.ClusterError as error:
            self._failed(recorded, error)
        finally:
            self._queue.task_done()

    def _failed(self, recorded: Recorded, error: api_errors.ClusterError) -> None:
        if self._clock() - recorded.recorded_at >= MAX_SECONDS.get(type(error), 0.0):
            self._drop(recorded, str(error))
            return
        asked_seconds = error.retry_after_seconds if isinstance(error, api_errors.Unavailable) else None
        pause_seconds = PAUSE_SECONDS[min(recorded.trials, len(PAUSE_SECONDS) - 1)]
        pause_seconds = max(pause_seconds, min(asked_seconds or 0.0, PAUSE_SECONDS[-1]))
        handle: asyncio.TimerHandle = asyncio.get_running_loop().call_later(pause_seconds, lambda: self._retry(handle))
        self._later[handle] = dataclasses.replace(recorded, trials=recorded.trials + 1)

    def _retry(self, handle: asyncio.TimerHandle) -> None:
        handle.cancel()
        self._queue.put_nowait(self._later.pop(handle))

    async def flush(self, timeout_seconds: float = 5.0) -> None:
        """Wait until `run` has written all recorded Events; log and give up if that takes too long.

        Events that wait for a retry are tried at once.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    for handle in list(self._later):
                        self._retry(handle)
                    await self._queue.join()
                    if not self._later:
                        return
                    await asyncio.sleep(FLUSH_PAUSE_SECONDS)
        except TimeoutError:
            logger.warning("Could not write all Events", extra={"events": self._queue.qsize() + len(self._later)})

    async def _write(self, recorded: Recorded) -> None:
        event = recorded.event
        at = quantity.format_time(recorded.at)
        # Events about cluster-scoped objects live in `default`.
        namespace = dict(event.regarding).get("namespace", "default")
        collection = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        body: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": recorded.name},
            "eventTime": at,
            "type": event.type,
            "reason": event.reason,
            "note": event.note,
            "action": event.action,
            "regarding": dict(event.regarding),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }
        if recorded.count > 1:
            seen = {"series": {"count": recorded.count, "lastObservedTime": at}}
            body.update(seen)
            try:
                await self._api.patch(f"{collection}/{recorded.name}", seen)
            except api_errors.NotFound:  # Events expire, usually after an hour
                pass
            else:
                return
        with contextlib.suppress(api_errors.AlreadyExists):  # its response was lost
            await self._api.create(collection, body)

    def _drop(self, recorded: Recorded, why: str) -> None:
        self.dropped += 1
        event = recorded.event
        self._told.forget(event)
        extra = {"regarding": dict(event.regarding), "reason": event.reason, "note": event.note, "err": why}
        logger.warning("Dropped an Event", extra=extra)
        recorded.on_drop()


def reference(item: Mapping[str, Any]) -> Regarding:
    """Return the reference to `item`, a whole object or a reference, for an `Event`."""
    flat = {**item.get("metadata", {}), **item}
    return tuple((key, str(flat[key])) for key in REFERENCE_KEYS if flat.get(key))


def _shortened(note: str) -> str:
    """Return `note`, cut to the API's limit, which counts bytes, not characters."""
    cut = note.encode()[: NOTE_BYTES - len("…".encode())].decode(errors="ignore") + "…"
    return note if len(note.encode()) <= NOTE_BYTES else cut
