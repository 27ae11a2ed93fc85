"""Keeps a store current with a collection of the API server: lists once, then watches, for ever.

A watch that has fallen too far behind (410) leads to a new list, whose difference to the store is reported like any
other change. Lists after the first request a version no older than the last one seen, because another API server may
lag behind. If the API server refuses that, the next list is a consistent read. An etcd that is restored from a backup
counts its versions again, and a watch from a version in the future is accepted but silent. So after a broken watch, the
informer first checks that the version exists. A list that is older than the last one is reported: see `went_back`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from gpushare.cluster import api_client, api_errors, object_store, retrying

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 30.0
MIN_WATCH_SECONDS: Final = 0.5
MIN_PAUSE_FRACTION: Final = 0.1  # the part of a pause that always passes
PORTION_SECONDS: Final = 0.01  # the time for which changes are reported without a pause
_NAME: Final = "metadata.name="
_CONSISTENT: Final = ""  # no version: the API server reads from etcd
_CACHED: Final = "0"  # any version: the API server answers from its cache

Handler = Callable[[object_store.Delta], None]
Object = TypeVar("Object")


def stale_reason(informers: Iterable[Informer], *, longest_seconds: float) -> str | None:
    """Return a sentence about an API server that answered once and has not served us for longer."""
    for copy in informers:
        if copy.synced.is_set() and copy.age_seconds > longest_seconds:
            return f"no update from the API server for {copy.age_seconds:.0f} seconds: {copy.problem or 'no answer'}"
    return None


class Informer:
    """A live copy of the collection at `path`, in `objects`, narrowed on the server by selectors.

    transform: what to keep of an object; it must keep name, namespace, uid and resourceVersion. believe_refusals: set
    once a refusal is final. An API server that has just started rejects all clients, because it has not read RBAC yet.
    None: the collection is required, and no refusal is final.

    synced: set once the first list is in `objects`, and never cleared; see `age_seconds` for the time after that.
    answered: set with `synced`, or once a request made after `believe_refusals` was set has been refused.

    is_watching: a watch is open, so handlers have missed nothing since the last list. listed_at: the time of that list,
    by the clock; handlers may have missed objects that came and went before it. went_back: handlers are now given an
    earlier state than before, with older versions. problem: why `objects` cannot be kept current, in the API server's
    words; empty while a watch is open.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        path: str,
        *,
        field_selector: str = "",
        label_selector: str = "",
        transform: object_store.Transform = object_store.drop_managed_fields,
        watch_seconds: int | None = None,
        believe_refusals: asyncio.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._path = path
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._query: dict[str, str] = {key: value for key, value in selectors.items() if value}
        self._watch_seconds = watch_seconds
        self._believe_refusals = believe_refusals
        self._clock = clock
        self._handlers: list[Handler] = []
        self._watch_from = ""  # "" means: list first
        self._list_from = _CACHED
        # Failed tries in a row. Refusals by an API server that is back are counted apart from its absence, because they
        # are no reason to wait as long; neither resets the other.
        self._lost = 0
        self._refused = 0
        self._was_cut = False
        self._unanswered_since: int | None = None  # the number of responses then; None: we had one
        self._newest = 0  # version of the collection
        self.is_watching = False
        self.went_back = False
        self._last_contact: float | None = None
        self.listed_at = float("-inf")
        self.transform = transform
        self._store = object_store.Store(transform)
        self.problem = ""
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()

    @property
    def objects(self) -> Mapping[object_store.Key, dict[str, Any]]:
        """The objects by (namespace, name); read only."""
        return self._store

    @property
    def age_seconds(self) -> float:
        """The time since `objects` was last known to be current; infinite before the first list.

        Zero while a watch is open: TCP keep-alive ends it within about half a minute if the peer is gone.
        """
        if self.is_watching:
            return 0.0
        return float("inf") if self._last_contact is None else self._clock() - self._last_contact

    def subscribe(self, handler: Handler) -> None:
        """Call `handler` for every object (as ADDED), and from now on for every change, in order.

        It is called synchronously, with `objects` exactly as after that change. An exception that it raises ends `run`.
        """
        for key, item in list(self._store.items()):
            handler(object_store.Delta(object_store.ChangeType.ADDED, key, None, item))
        self._handlers.append(handler)

    async def run(self) -> None:
        """Keep the copy current until cancelled."""
        while True:
            await self._pause(await self.step())

    async def _pause(self, seconds: float) -> None:
        """Wait; while the API server is away, only until any other call gets a response."""
        if self._unanswered_since is None:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(seconds * MIN_PAUSE_FRACTION)
        await self._api.answers.more_than(self._unanswered_since, seconds=seconds * (1 - MIN_PAUSE_FRACTION))

    async def step(self) -> float:
        """List if due, and watch until the watch ends; return the pause in seconds before the next step."""
        self._unanswered_since = None
        is_believed = self._believe_refusals is not None and self._believe_refusals.is_set()
        try:
            if not self._watch_from:
                await self._list()
            elif self._was_cut:
                await self._check_version()
            self._was_cut = False
            watched_seconds = await self._watch()
        except api_errors.Gone as error:
            logger.info("Listing again: the watch expired", extra={"path": self._path, "err": str(error)})
            return self._list_again()
        except api_errors.Unavailable as error:
            if error.status == 504:
                # It rejects our version as newer than any, as after a restore of etcd.
                pause = self._list_again()
            elif error.reason:
                pause = self._count_refused()  # a cache that is not ready after a restart, or too many requests
            else:
                pause = self._count_lost()
                if not error.status:
                    self._unanswered_since = self._api.answers.count
            logger.warning("Lost the connection", extra=self._record_problem(error, pause))
            # A proxy may ask for an hour, without knowing about the API server behind it.
            return max(pause, min(error.retry_after_seconds or 0.0, MAX_PAUSE_SECONDS))
        except api_errors.ClusterError as error:
            pause = self._list_again()
            logger.warning("The API server rejected the request", extra=self._record_problem(error, pause))
            if is_believed:
                self.answered.set()
            return pause
        # A watch that ends as soon as it is open was cut by something in between; retrying at once would be a storm.
        return self._count_lost() if watched_seconds < MIN_WATCH_SECONDS else 0.0

    async def _list(self) -> None:
        query = dict(self._query)
        if self._list_from != _CONSISTENT:
            query["resourceVersion"] = self._list_from
            query["resourceVersionMatch"] = "NotOlderThan"
        listing = await self._api.list(self._path, query, keep=self._store.keep)
        self.listed_at = self._clock()
        self.went_back = _number(listing.resource_version) < self._newest
        if self.went_back:
            logger.warning("The API server has gone back in time", extra={"path": self._path})
        began = time.perf_counter()
        for change in self._store.replace(listing.items):
            if change is not None:
                self._notify(change)
            if time.perf_counter() - began > PORTION_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        self.went_back = False
        self._advance(listing.resource_version)
        self.synced.set()
        self.answered.set()

    async def _check_version(self) -> None:
        """Raise Unavailable, with the status 504, if the version to watch from is in the future.

        A list waits for that version, a watch does not. This list returns at most one object, from the cache.
        """
        fields = self._query.get("fieldSelector", "")
        if _NAME not in fields:
            fields = ",".join(filter(None, (fields, f"{_NAME}none.gpushare.io")))
        query = {"resourceVersion": self._watch_from, "resourceVersionMatch": "NotOlderThan"}
        await self._api.list(self._path, {**self._query, **query, "fieldSelector": fields}, keep=object_store.key_of)

    async def _watch(self) -> float:
        """Watch until the watch ends; return for how many seconds it was open."""
        query = {**self._query, "resourceVersion": self._watch_from}
        async with self._api.watch(self._path, query, timeout_seconds=self._watch_seconds) as events:
            self.is_watching, opened = True, self._clock()
            self.problem = ""
            try:
                async for event in events:
                    if event["type"] != "BOOKMARK":
                        for change in self._store.apply(event):
                            self._notify(change)
                    self._advance(event["object"]["metadata"]["resourceVersion"])
                    self._lost = self._refused = 0
            finally:
                self.is_watching = False
                self._last_contact = self._clock()
        if self._last_contact - opened >= MIN_WATCH_SECONDS:
            self._lost = self._refused = 0
        return self._last_contact - opened

    def _advance(self, resource_version: str) -> None:
        self._watch_from = self._list_from = resource_version
        self._newest = _number(resource_version)
        self._last_contact = self._clock()

    def _notify(self, change: object_store.Delta) -> None:
        for handler in self._handlers:
            handler(change)

    def _count_lost(self) -> float:
        """Count one more try without contact; return the pause in seconds."""
        self._lost += 1
        self._was_cut = True
        return _pause_seconds(self._lost)

    def _count_refused(self) -> float:
        """Count one more refusal; return the pause in seconds."""
        self._refused += 1
        self._was_cut = True
        return _pause_seconds(self._refused)

    def _list_again(self) -> float:
        """Count one more refusal, and make the next list a consistent read."""
        self._watch_from = ""
        self._list_from = _CONSISTENT
        return self._count_refused()

    def _record_problem(self, error: api_errors.ClusterError, pause: float) -> dict[str, Any]:
        self.problem = str(error)
        return {
            "path": self._path,
            "err": str(error),
            "failures": self._lost + self._refused,
            "pause_seconds": round(pause, 2),
        }


def _number(resource_version: str) -> int:
    """Return a version as a number. Versions of one kind compare as numbers by contract since Kubernetes 1.35, before
    by custom.
    """
    return int(resource_version) if resource_version.isdecimal() else 0


def _pause_seconds(failures: int) -> float:
    return retrying.pause_seconds(failures, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS)


class Part(Generic[Object]):
    """A view of an informer's objects: the values, of any type, that its objects have under `key`.

    One list and one watch serve two readers with different needs. Create it before `whole` runs.
    """

    def __init__(self, whole: Informer, key: str) -> None:
        self._key = key
        self._objects: dict[object_store.Key, Object] = {}
        self._handlers: list[Callable[[Object | None, Object | None], None]] = []
        self.synced = whole.synced
        whole.subscribe(self._changed)

    @property
    def objects(self) -> Mapping[object_store.Key, Object]:
        """The objects by (namespace, name); read only."""
        return self._objects

    def subscribe(self, handler: Callable[[Object | None, Object | None], None]) -> None:
        """Call `handler` for every object, and from now on for every change, in order.

        It gets the object before (None: added) and after (None: deleted).
        """
        for item in list(self._objects.values()):
            handler(None, item)
        self._handlers.append(handler)

    def _changed(self, change: object_store.Delta) -> None:
        old = self._objects.pop(change.key, None)
        new: Object | None = change.new.get(self._key) if change.new is not None else None
        if new is not None:
            self._objects[change.key] = new
        elif old is None:
            return
        for handler in self._handlers:
            handler(old, new)
