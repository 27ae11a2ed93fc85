"""Kubernetes Events: the sentences that `kubectl describe` shows under an object.

An Event must never delay or fail the work that it reports: `record` only puts it in a bounded queue. Events that the
API server rejects are logged and dropped. Events that it cannot take now are retried, because most occur only once.
`event_series` decides what is not worth repeating.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpushare.cluster import api_client, api_errors, event_series

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

    event: event_series.Event
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
        self._told = event_series.EventDeduplicator()
        self._queue: asyncio.Queue[Recorded] = asyncio.Queue()
        self._later: dict[asyncio.TimerHandle, Recorded] = {}  # waiting for a retry
        self.dropped = 0

    def record(
        self,
        regarding: Mapping[str, Any],
        reason: str,
        note: str,
        *,
        type: event_series.EventType = "Normal",  # noqa: A002 (the API's word)
        action: str = "Place",
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        """Record an occurrence at the object `regarding` (whole, or a reference). Returns at once.

        on_drop: called if the Event could not be written in the end, for callers that report something only once.
        """
        event = event_series.Event(reference(regarding), reason, _shortened(note, NOTE_BYTES), type, action)
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
        event, at = recorded.event, _micro_time(recorded.at)
        # Events about cluster-scoped objects live in `default`.
        namespace = dict(event.regarding).get("namespace", "default")
        collection = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        body = self._body(event, recorded.name, namespace, at)
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

    def _body(self, event: event_series.Event, name: str, namespace: str, at: str) -> dict[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": name},
            "eventTime": at,
            "type": event.type,
            "reason": event.reason,
            "note": event.note,
            "action": event.action,
            "regarding": dict(event.regarding),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }

    def _drop(self, recorded: Recorded, why: str) -> None:
        self.dropped += 1
        event = recorded.event
        self._told.forget(event)
        extra = {"regarding": dict(event.regarding), "reason": event.reason, "note": event.note, "err": why}
        logger.warning("Dropped an Event", extra=extra)
        recorded.on_drop()


def reference(item: Mapping[str, Any]) -> event_series.Regarding:
    """Return the reference to `item`, a whole object or a reference, for `event_series.Event`."""
    flat = {**item.get("metadata", {}), **item}
    return tuple((key, str(flat[key])) for key in REFERENCE_KEYS if flat.get(key))


def _shortened(note: str, most_bytes: int) -> str:
    """Return `note`, cut to the API's limit, which counts bytes, not characters."""
    encoded = note.encode()
    if len(encoded) <= most_bytes:
        return note
    return encoded[: most_bytes - len("…".encode())].decode(errors="ignore") + "…"


def _micro_time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
