"""Pending reasons: reports why gated pods wait, by annotation and Event, at a rate that the API server can bear.

On a busy cluster, the figures in every reason change with each pod that is placed. So the first reason of a pod is
written at once, and later changes at growing intervals, with a limit for all pods together. Failed writes are retried.
On a pod that waits to be resized, a second annotation records what it holds, in case the ledger is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from gpushare import contract
from gpushare.cluster import api_client, api_errors
from gpushare.cluster.events import EventType
from webhook.controllers.pacing import WriteBackoff
from webhook.pods.stored_pod import Pod

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 3.0  # short enough for a user who creates the members of a group one by one
MAX_PAUSE_SECONDS: Final = 900.0
MAX_AT_ONCE: Final = 20  # reasons per round, and as many Events alone
ROUND_SECONDS: Final = 2.0
MAX_ROUND_SECONDS: Final = 60.0  # while the API server does not answer
NOTHING: Final[Mapping[str, str]] = {}


class PodClient(Protocol):
    """The calls of the API client that reading and patching a pod needs."""

    async def get(self, path: str) -> dict[str, Any]:
        """Return the object at `path`. Raises ClusterError."""

    async def patch(
        self,
        path: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        content_type: str = api_client.MERGE_PATCH,
    ) -> object:
        """Patch the object at `path`. Raises ClusterError."""


class EventRecorder(Protocol):
    """Records Events; see `gpushare.cluster.events.Recorder`."""

    def record(
        self,
        regarding: Mapping[str, Any],
        reason: str,
        note: str,
        *,
        type: EventType = "Normal",  # noqa: A002 (the API's word)
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        """Record an Event about an object. on_drop: called if it never reaches the API server."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Reported:
    sentence: str
    held: str | None
    at: float
    pause_seconds: float = FIRST_PAUSE_SECONDS


@dataclasses.dataclass(eq=False)
class PendingReasonReporter:
    """Reports why pods wait. event: the reason of the Events."""

    api: PodClient
    recorder: EventRecorder
    _: dataclasses.KW_ONLY
    event: str = contract.EVENT_GATED
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._reported: dict[str, _Reported] = {}  # UID of the pod -> what is written on it
        self._recorded: dict[str, str] = {}  # UID of the pod -> sentence of its last Event
        self._backoff = WriteBackoff()
        self._dropped = WriteBackoff()  # of Events that the API server rejected
        self._events = 0  # Events without a write of the pod, in this interval
        self._events_at = -ROUND_SECONDS
        self._round_seconds = ROUND_SECONDS
        self._round_at = -ROUND_SECONDS

    def forget_all_but(self, uids: Iterable[str]) -> None:
        kept = set(uids)
        self._reported = {uid: written for uid, written in self._reported.items() if uid in kept}
        self._recorded = {uid: noted for uid, noted in self._recorded.items() if uid in kept}

    async def report(
        self, sentences: Sequence[tuple[Pod, str]], held_shares: Mapping[str, str] = NOTHING
    ) -> float | None:
        """Write reasons that are due; return in how many seconds the next are. held_shares: of resizing pods."""
        now = self.clock()
        due, later = [], list[float]()
        for pod, sentence in sentences:
            uid = pod.ref.uid
            held = held_shares.get(uid)
            if uid not in self._reported and uid not in self._backoff and _has(pod, sentence, held):
                # The webhook or a former placer has written the reason; the Event costs one write in the pod's life.
                self._remember(uid, sentence, held, now)
            wait_seconds = self._wait_seconds(uid, sentence, held, now)
            if wait_seconds is None:
                wait_seconds = self._record_event_only(pod, sentence, now)
            elif wait_seconds <= 0:
                due.append((pod, sentence, held))
            if wait_seconds > 0:
                later.append(wait_seconds)
        if due and now - self._round_at < self._round_seconds:
            return self._round_seconds - (now - self._round_at)
        for number, (pod, sentence, held) in enumerate(due, start=1):
            self._round_at = now
            if (wait_seconds := self._record_event(pod, sentence, now)) > 0:
                later.append(wait_seconds)
            try:
                with contextlib.suppress(api_errors.NotFound, api_errors.Conflict):  # it is gone
                    await self._write(pod, sentence, held)
            except api_errors.ClusterError as error:
                logger.warning("Could not write why a pod waits", extra={"pod": pod.path, "err": str(error)})
                later.append(self._backoff.failed(pod.ref.uid, now=now))
                if isinstance(error, api_errors.Unavailable):
                    # Writes to other pods would fail too.
                    self._round_seconds = min(2 * self._round_seconds, MAX_ROUND_SECONDS)
                    break
            else:
                self._backoff.succeeded(pod.ref.uid)
                self._remember(pod.ref.uid, sentence, held, now)
                self._round_seconds = ROUND_SECONDS
            if number == MAX_AT_ONCE:
                break
        if due and number < len(due):
            later.append(self._round_seconds)
        return min(later, default=None)

    def _wait_seconds(self, uid: str, sentence: str, held: str | None, now: float) -> float | None:
        """Return how long to wait before this reason is due; None if it is written already."""
        if uid in self._backoff:  # it is unknown whether the last reason was written
            return self._backoff.wait_seconds(uid, now=now)
        written = self._reported.get(uid)
        if written is None or written.held != held:
            return 0.0
        return None if written.sentence == sentence else written.at + written.pause_seconds - now

    def _remember(self, uid: str, sentence: str, held: str | None, now: float) -> None:
        before = self._reported.get(uid)
        pause = FIRST_PAUSE_SECONDS if before is None else min(MAX_PAUSE_SECONDS, 2 * before.pause_seconds)
        self._reported[uid] = _Reported(sentence, held, now, pause)

    def _record_event_only(self, pod: Pod, sentence: str, now: float) -> float:
        """Record the Event for a reason that is on the pod already; return how long to wait if that is not allowed yet.

        A placer that takes over finds all of them at once, and the queue of Events is bounded.
        """
        if self._recorded.get(pod.ref.uid) == sentence:
            return 0.0
        if now - self._events_at >= ROUND_SECONDS:
            self._events = 0
            self._events_at = now
        if self._events == MAX_AT_ONCE:
            return self._events_at + ROUND_SECONDS - now
        wait_seconds = self._record_event(pod, sentence, now)
        self._events += wait_seconds <= 0
        return wait_seconds

    def _record_event(self, pod: Pod, sentence: str, now: float) -> float:
        """Record the Event, or return how long to wait because the API server rejected the last one."""
        uid = pod.ref.uid
        wait_seconds = self._dropped.wait_seconds(uid, now=now)
        if wait_seconds <= 0 and self._recorded.get(uid) != sentence:
            self._recorded[uid] = sentence
            on_drop = functools.partial(self._drop, uid, sentence)
            self.recorder.record(pod.reference, self.event, sentence, on_drop=on_drop)
        return wait_seconds

    def _drop(self, uid: str, sentence: str) -> None:
        if self._recorded.get(uid) == sentence:  # otherwise the pod is gone, or waits for another reason now
            del self._recorded[uid]
            self._dropped.failed(uid, now=self.clock())

    async def _write(self, pod: Pod, sentence: str, held: str | None) -> None:
        if _has(pod, sentence, held):
            return
        annotations = {contract.REASON: sentence, **({} if held is None else {contract.HELD: held})}
        # With the UID, because a new pod may have the same name.
        await self.api.patch(pod.path, {"metadata": {"uid": pod.ref.uid, "annotations": annotations}})


def _has(pod: Pod, sentence: str, held: str | None) -> bool:
    return pod.annotations.get(contract.REASON) == sentence and pod.annotations.get(contract.HELD) == held
