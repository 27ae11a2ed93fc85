"""Telling: keeps the reason of a gated pod true, in its annotation and by Events, at a price that the API server bears.

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


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    sentence: str
    at: float
    pause_seconds: float = FIRST_PAUSE_SECONDS


class Telling:
    """Tells pods why they wait."""

    def __init__(
        self, api: client.Client, recorder: events.Recorder, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._clock = clock
        self._told: dict[str, _Told] = {}  # by uid of the pod
        self._round_at = -ROUND_SECONDS

    def forget_all_but(self, uids: Iterable[str]) -> None:
        """Those still wait."""
        kept = set(uids)
        self._told = {uid: told for uid, told in self._told.items() if uid in kept}

    async def tell(self, sentences: Sequence[tuple[PodJson, str]]) -> float | None:
        """Tell what is due; return in how many seconds there is more to tell, None when everything is told."""
        now = self._clock()
        due, later = [], []
        for one, sentence in sentences:
            told = self._told.get(pod.uid(one))
            if told is None and pod.annotations_of(one).get(contract.REASON) == sentence:
                # The webhook, or a placer before us, has written it; the Event costs one write in the pod's life.
                self._remember(one, sentence, now)
                self._recorder.record(one, contract.EVENT_GATED, sentence)
            elif told is None or (told.sentence != sentence and now - told.at >= told.pause_seconds):
                due.append((one, sentence))
            elif told.sentence != sentence:
                later.append(told.at + told.pause_seconds - now)
        if due and now - self._round_at < ROUND_SECONDS:
            return ROUND_SECONDS - (now - self._round_at)
        for one, sentence in due[:MOST_AT_ONCE]:
            self._round_at = now
            self._remember(one, sentence, now)
            await self._write(one, sentence)
        if len(due) > MOST_AT_ONCE:
            later.append(ROUND_SECONDS)
        return min(later, default=None)

    def _remember(self, one: PodJson, sentence: str, now: float) -> None:
        before = self._told.get(pod.uid(one))
        pause = FIRST_PAUSE_SECONDS if before is None else min(MOST_PAUSE_SECONDS, 2 * before.pause_seconds)
        self._told[pod.uid(one)] = _Told(sentence, now, pause)

    async def _write(self, one: PodJson, sentence: str) -> None:
        self._recorder.record(one, contract.EVENT_GATED, sentence)
        if pod.annotations_of(one).get(contract.REASON) == sentence:
            return
        # With the uid: a pod of the same name that was made since then is another.
        body = {"metadata": {"uid": pod.uid(one), "annotations": {contract.REASON: sentence}}}
        path = "/api/v1/namespaces/{}/pods/{}".format(*pod.namespaced_name(one))
        try:
            await self._api.patch(path, body)
        except cluster_errors.ClusterError as error:
            logger.info("Could not write the reason of a gated pod", extra={"pod": path, "err": str(error)})
