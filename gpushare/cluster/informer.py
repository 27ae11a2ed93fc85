"""Keeps a store in sync with a collection of the API server: lists once, then watches.

The difficulty is in the edge cases:

- If a watch has fallen too far behind (410, as an HTTP status or as an event), the collection is listed again. Handlers
  get the difference like any other change, with pauses for other tasks if it is long.
- A list is never held as a whole, only what is kept of each object. So a new list takes no more memory than a second
  copy, less the unchanged objects.
- Lists after the first never go back in time: they ask for no older version than the last one seen, because another API
  server may lag behind. If the API server rejects that, the retry is a consistent read, which cannot be too old or too
  new.
- An etcd that is restored from a backup counts its versions once more. A watch from a version in the future opens, but
  is silent until the count gets there. So after a watch broke, a cheap list checks first that the version exists. A
  list that is older than the last one seen is accepted, and marked as such for handlers: see `went_back`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gpushare.cluster import api_client, api_errors, backoff, object_store

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 30.0
MIN_WATCH_SECONDS: Final = 0.5
MIN_OF_PAUSE: Final = 0.1  # the part of a pause that is never cut short
PORTION_SECONDS: Final = 0.01  # how long changes are delivered before other tasks may run
_NAME: Final = "metadata.name="
_CONSISTENT: Final = ""  # no version named: the API server reads from etcd
_CACHED: Final = "0"  # any version: the API server answers from its cache

Handler = Callable[[object_store.Delta], None]


def silence(informers: Iterable[Informer], *, longest_seconds: float) -> str | None:
    """Return a sentence about the API server if a synced copy has been stale for longer; else None."""
    for copy in informers:
        if copy.synced.is_set() and copy.age_seconds > longest_seconds:
            return f"no contact to the API server for {copy.age_seconds:.0f} seconds: {copy.problem or 'no answer'}"
    return None


class Informer:
    """A live copy of the collection at `path`, in `objects`, narrowed on the server by selectors.

    transform: what to keep of an object; it must keep name, namespace, uid and resourceVersion. believe_refusals: set
    once a refusal is final. An API server that has just started rejects every client until it has read the RBAC rules.
    None: the collection is required, and no refusal is final.

    synced: set once the first list is in `objects`, and never cleared; see `age_seconds` for the time after that.
    answered: set once `synced` is, or once a request sent after `believe_refusals` was set has been refused.
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
        # Attempts in a row without a good watch. An API server that answers with an error needs no pause as long as one
        # that is gone, so the two are counted separately, and neither resets the other.
        self._lost = 0
        self._refused = 0
        self._was_cut = False
        # the count of answers when contact was lost; None while we have contact
        self._unanswered_since: int | None = None
        self._newest = 0  # version of the collection
        self._watching = False
        self._went_back = False
        self._last_contact: float | None = None
        self._listed_at = float("-inf")
        self.transform = transform
        self._store = object_store.Store(transform)
        self._problem = ""
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()

    @property
    def objects(self) -> Mapping[object_store.Key, dict[str, Any]]:
        """The objects by (namespace, name); read only."""
        return self._store

    @property
    def age_seconds(self) -> float:
        """How long ago `objects` was last known to be current; infinite before the first list.

        Zero while a watch is open: TCP keep-alive ends it within about half a minute if the other side is gone.
        """
        if self._watching:
            return 0.0
        return float("inf") if self._last_contact is None else self._clock() - self._last_contact

    @property
    def problem(self) -> str:
        """The API server's last error, because of which `objects` is not current; empty while a watch is open."""
        return self._problem

    @property
    def is_watching(self) -> bool:
        """Whether a watch is open; if so, a handler's change came from it, and none was missed since the last list."""
        return self._watching

    @property
    def went_back(self) -> bool:
        """Whether the change that a handler gets now is from an earlier state than previous ones, with older
        versions.
        """
        return self._went_back

    @property
    def listed_at(self) -> float:
        """When it was last listed, by the clock. Handlers may have missed objects that were created and deleted
        before.
        """
        return self._listed_at

    def subscribe(self, handler: Handler) -> None:
        """Call `handler` for every object there is (as ADDED), and from now on for every change, in order.

        It is called synchronously, with `objects` just as after that change. An exception from it ends `run`.
        """
        for key, item in list(self._store.items()):
            handler(object_store.Delta(object_store.ChangeType.ADDED, key, None, item))
        self._handlers.append(handler)

    async def run(self) -> None:
        """Keep the copy in sync until cancelled."""
        while True:
            await self._pause(await self.step())

    async def _pause(self, seconds: float) -> None:
        """Wait so long; if the API server is gone, only until any caller in this process gets an answer from it."""
        if self._unanswered_since is None:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(seconds * MIN_OF_PAUSE)
        await self._api.answers.more_than(self._unanswered_since, seconds=seconds * (1 - MIN_OF_PAUSE))

    async def step(self) -> float:
        """List if that is due, and watch until the watch ends; return the pause in seconds before the next step."""
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
            logger.info("Listing again: the watch was too far behind", extra={"path": self._path, "err": str(error)})
            return self._list_again()
        except api_errors.Unavailable as error:
            if error.status == 504:
                # The error is about the version that we named: it is in the future, as after a restore of etcd.
                pause = self._list_again()
            elif error.reason:
                pause = self._refuse()  # a cache that is not ready yet, as after a restart, or too many requests
            else:
                pause = self._lose()
                if not error.status:
                    self._unanswered_since = self._api.answers.count
            logger.warning("Lost contact", extra=self._seen(error, pause))
            # A proxy may ask for an hour, without knowing how long the API server behind it needs.
            return max(pause, min(error.retry_after_seconds or 0.0, MAX_PAUSE_SECONDS))
        except api_errors.ClusterError as error:
            pause = self._list_again()
            logger.warning("Was refused", extra=self._seen(error, pause))
            if is_believed:
                self.answered.set()
            return pause
        # A watch that ends at once was cut by something in between; reopening it at once would be a storm.
        return self._lose() if watched_seconds < MIN_WATCH_SECONDS else 0.0

    async def _list(self) -> None:
        query = dict(self._query)
        if self._list_from != _CONSISTENT:
            query["resourceVersion"] = self._list_from
            query["resourceVersionMatch"] = "NotOlderThan"
        listing = await self._api.list(self._path, query, keep=self._store.keep)
        self._listed_at = self._clock()
        self._went_back = _number(listing.resource_version) < self._newest
        if self._went_back:
            logger.warning("The API server has gone back in time", extra={"path": self._path})
        began = time.perf_counter()
        for change in self._store.replace(listing.items):
            if change is not None:
                self._tell(change)
            if time.perf_counter() - began > PORTION_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        self._went_back = False
        self._advance(listing.resource_version)
        self.synced.set()
        self.answered.set()

    async def _check_version(self) -> None:
        """Raise Unavailable, with the status 504, if the version that we watch from does not exist yet.

        A list waits for that version, a watch does not. This list has at most one object, and comes from the cache.
        """
        fields = self._query.get("fieldSelector", "")
        if _NAME not in fields:
            fields = ",".join(filter(None, (fields, f"{_NAME}none.gpushare.io")))
        query = {"resourceVersion": self._watch_from, "resourceVersionMatch": "NotOlderThan"}
        await self._api.list(self._path, {**self._query, **query, "fieldSelector": fields}, keep=object_store.key_of)

    async def _watch(self) -> float:
        """Watch until the watch ends; return how many seconds it was open."""
        query = {**self._query, "resourceVersion": self._watch_from}
        async with self._api.watch(self._path, query, timeout_seconds=self._watch_seconds) as events:
            self._watching, opened = True, self._clock()
            self._problem = ""
            try:
                async for event in events:
                    if event["type"] != "BOOKMARK":
                        for change in self._store.apply(event):
                            self._tell(change)
                    self._advance(event["object"]["metadata"]["resourceVersion"])
                    self._lost = self._refused = 0
            finally:
                self._watching = False
                self._last_contact = self._clock()
        if self._last_contact - opened >= MIN_WATCH_SECONDS:
            self._lost = self._refused = 0
        return self._last_contact - opened

    def _advance(self, resource_version: str) -> None:
        self._watch_from = self._list_from = resource_version
        self._newest = _number(resource_version)
        self._last_contact = self._clock()

    def _tell(self, change: object_store.Delta) -> None:
        for handler in self._handlers:
            handler(change)

    def _lose(self) -> float:
        """Count one more try without contact; return the pause in seconds."""
        self._lost += 1
        self._was_cut = True
        return _pause_seconds(self._lost)

    def _refuse(self) -> float:
        """Count one more refusal; return the pause in seconds."""
        self._refused += 1
        self._was_cut = True
        return _pause_seconds(self._refused)

    def _list_again(self) -> float:
        """Count one more refusal, and list next, as a consistent read; return the pause in seconds."""
        self._watch_from, self._list_from = "", _CONSISTENT
        return self._refuse()

    def _seen(self, error: api_errors.ClusterError, pause: float) -> dict[str, Any]:
        self._problem = str(error)
        return {
            "path": self._path,
            "err": str(error),
            "failures": self._lost + self._refused,
            "pause_seconds": round(pause, 2),
        }


def _number(resource_version: str) -> int:
    """Return the version as a number. Kubernetes guarantees since 1.35 that versions of one kind compare as numbers."""
    return int(resource_version) if resource_version.isdecimal() else 0


def _pause_seconds(failures: int) -> float:
    return backoff.pause_seconds(failures, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS)
