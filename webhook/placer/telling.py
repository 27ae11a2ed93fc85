"""Telling: keeps the reason of a pod that waits true, in its annotation and by Events, at a price the API server bears.

On a busy cluster the numbers of every reason change with every pod that is placed. So a first reason is told at once,
and changes of one pod's reason ever less often; and of all pods together only so many a second.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, pod
from gpushare.cluster import client, events
from gpushare.cluster import errors as cluster_errors

logger = logging.getLogger(__name__)

PodJson = Mapping[str, Any]

FIRST_PAUSE_SECONDS: Final = 15.0
MOST_PAUSE_SECONDS: Final = 900.0
MOST_AT_ONCE: Final = 20  # of one round: what is left is told in the next
ROUND_SECONDS: Final = 2.0
NOTHING: Final[Mapping[str, str]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    sentence: str
    held: str | None
    at: float
    pause_seconds: float = FIRST_PAUSE_SECONDS


class Telling:
    """Tells pods why they wait. `event`: the reason of the Events."""

    def __init__(
        self,
        api: client.Client,
        recorder: events.Recorder,
        *,
        event: str = contract.EVENT_GATED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._event = event
        self._clock = clock
        self._told: dict[str, _Told] = {}  # by uid of the pod
        self._round_at = -ROUND_SECONDS

    def forget_all_but(self, uids: Iterable[str]) -> None:
        """Those still wait."""
        kept = set(uids)
        self._told = {uid: told for uid, told in self._told.items() if uid in kept}

    async def tell(self, sentences: Sequence[tuple[PodJson, str]], beside: Mapping[str, str] = NOTHING) -> float | None:
        """Tell what is due; return in how many seconds there is more to tell, None when everything is told.

        beside: by uid of the pod, what it holds meanwhile; a change of that is told without a pause.
        """
        now = self._clock()
        due, later = [], []
        for one, sentence in sentences:
            told, held = self._told.get(pod.uid(one)), beside.get(pod.uid(one))
            if told is None and _has(one, sentence, held):
                # The webhook, or a placer before us, has written it; the Event costs one write in the pod's life.
                self._remember(one, sentence, held, now)
                self._recorder.record(one, self._event, sentence)
            elif (
                told is None or told.held != held or (told.sentence != sentence and now - told.at >= told.pause_seconds)
            ):
                due.append((one, sentence, held))
            elif told.sentence != sentence:
                later.append(told.at + told.pause_seconds - now)
        if due and now - self._round_at < ROUND_SECONDS:
            return ROUND_SECONDS - (now - self._round_at)
        for one, sentence, held in due[:MOST_AT_ONCE]:
            self._round_at = now
            self._remember(one, sentence, held, now)
            await self._write(one, sentence, held)
        if len(due) > MOST_AT_ONCE:
            later.append(ROUND_SECONDS)
        return min(later, default=None)

    def _remember(self, one: PodJson, sentence: str, held: str | None, now: float) -> None:
        before = self._told.get(pod.uid(one))
        pause = FIRST_PAUSE_SECONDS if before is None else min(MOST_PAUSE_SECONDS, 2 * before.pause_seconds)
        self._told[pod.uid(one)] = _Told(sentence, held, now, pause)

    async def _write(self, one: PodJson, sentence: str, held: str | None) -> None:
        self._recorder.record(one, self._event, sentence)
        if _has(one, sentence, held):
            return
        annotations = {contract.REASON: sentence, **({} if held is None else {contract.HELD: held})}
        # With the uid: a pod of the same name that was made since then is another.
        body = {"metadata": {"uid": pod.uid(one), "annotations": annotations}}
        path = "/api/v1/namespaces/{}/pods/{}".format(*pod.namespaced_name(one))
        try:
            await self._api.patch(path, body)
        except cluster_errors.ClusterError as error:
            logger.info("Could not write why a pod waits", extra={"pod": path, "err": str(error)})


def _has(one: PodJson, sentence: str, held: str | None) -> bool:
    annotations = pod.annotations_of(one)
    return annotations.get(contract.REASON) == sentence and annotations.get(contract.HELD) == held
