"""Gates: gives the pods that wait their turn, opens the gates of those that are placed, and tells the others why not.

A pod is placed by two writes: its share into the ledger, with the pod's uid, then one patch of the pod. A placer that
ends between them leaves a share that belongs to a gated pod, which the next one finds and goes on from. A policy, or
somebody's webhook, may refuse that patch: it is tried again ever more slowly, and who waits for it keeps no GPU.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from gpushare import contract, errors
from gpushare.cluster import api_client, api_errors, events
from gpushare.pod import PodJson, annotations_of
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook import event_loop
from webhook.controllers import queue
from webhook.controllers.gated_pods import backfill, gang
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.gated_pods.pod_index import PodIndex
from webhook.controllers.pending_reasons import PendingReasonReporter
from webhook.controllers.write_backoff import WriteBackoff
from webhook.metrics import Metrics
from webhook.pods import difference, mutation
from webhook.pods.stored_pod import Pod
from webhook.store.api_store import ApiStore
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

OPEN_TRIES: Final = 4
MAX_UNANSWERED_SECONDS: Final = 5.0  # before a gate is tried again of which the API server said nothing
MAX_SHUT_SECONDS: Final = 300.0  # before a gate is tried again that could not be opened
ON_ITS_WAY_SECONDS: Final = 120.0  # of a write without an answer; an API server gives up after 60 s by default
ANY_VERSION: Final = "*"
MAX_WORDS: Final = 500  # of the API server's sentence
BEHIND_SECONDS: Final = 2.0  # until those have their turn that a round left out


class Gates:
    """Opens gates, in order, as far as there is room.

    passes: where it is counted who passes over pods that wait; a pod that takes more where it is does so, too.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        ledger_now: ApiStore,
        reservation: Reservation,
        recorder: events.Recorder,
        measures: Metrics,
        *,
        bound: backfill.Bound = backfill.DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._metrics = measures
        self._clock = clock
        self._wall_clock = wall_clock
        self._reporter = PendingReasonReporter(api, recorder, clock=clock)
        self._arranger = gang.Arranger()
        self._opened: dict[str, str] = {}  # uid -> the version that was opened, until our copy shows a later one
        self._shut: dict[str, Refusal] = {}  # uid -> why its gate could not be opened
        self._backoff = WriteBackoff(most_seconds=MAX_SHUT_SECONDS)
        self._unanswered: dict[str, tuple[str, float]] = {}  # uid -> the version that a patch was for, and until when
        self.passes = backfill.Passes()
        self._turns = GatedPodScheduler(
            ledger_now,
            reservation,
            self.passes,
            opens=self._open,
            shut=self._is_shut,
            still_gated=self._still_gated,
            warns=self._warn,
            bound=bound,
        )

    async def open_all(self, pods: PodIndex) -> float | None:
        """Place what can be placed; return in how many seconds there is more to tell, None if there is nothing."""
        shown = {uid: pods.waiting[uid].version for uid in self._opened if uid in pods.waiting}
        self._opened = {uid: version for uid, version in self._opened.items() if shown.get(uid) == version}
        arranged = self._arranger.arrange(pods.waiting, pods.members, opened=self._opened)
        gated = {uid for unit in arranged.units for uid in unit.uids} | {pod.ref.uid for pod, _ in arranged.held_back}
        self._reporter.forget_all_but(gated)
        self._forget_shut(gated)
        now = self._wall_clock()
        await event_loop.let_others_run()  # with very many, each of these takes a while
        waiting = await self._turns.take(pods, arranged, now=now)
        self._metrics.waiting(
            queue.counts(waiting),
            longest_seconds=queue.longest_seconds((pod for pod, _ in waiting), now=now),
        )
        await event_loop.let_others_run()
        tell_again = await self._reporter.tell([(pod, refusal.reason) for pod, refusal in waiting])
        waits = [self._backoff.wait_seconds(uid, now=self._clock()) for uid in self._shut]
        waits += [tell_again or 0.0, BEHIND_SECONDS if self._turns.is_behind else 0.0]
        return min((seconds for seconds in waits if seconds > 0), default=None)

    def came(self, pod: Pod) -> None:
        """A pod was created: if it waits, nobody else's many keep it waiting for long."""
        if pod.waits:
            self._turns.came(pod.ref.namespace)

    async def _open(self, pod: Pod, request: Request, placed: mutation.Placed) -> Refusal | None:
        """Open a gate, also when others write to the pod at the same time: then on the pod as it is now.

        Return why it cannot be opened, for which its share is to be given back if the cause is REFUSED.
        """
        shut = self._is_shut(pod)
        if shut is not None:
            return shut
        who = {"namespace": pod.ref.namespace, "name": pod.ref.name}
        known, manifest, uid = pod, pod.manifest, pod.ref.uid
        for attempt in range(1, OPEN_TRIES + 1):
            try:
                changes = difference.patch(manifest, mutation.open_gate(manifest, request, placed))
            except errors.LedgerError as error:
                said = f"it gets another share, as this one is not what it asks for: {error}"
                return self._shuts(pod, said, not self._is_on_its_way(uid, ANY_VERSION))
            try:
                tests = _is_same_version(pod) if attempt == 1 else _is_as_read(manifest)
                await self._api.patch(pod.path, [*tests, *changes], api_client.JSON_PATCH)
                break
            except api_errors.NotFound:
                return None  # deleted meanwhile: its share is released like any other
            except api_errors.ClusterError as error:
                logger.info("Could not open a gate", extra={"pod": who, "attempt": attempt, "err": str(error)})
                words = errors.shortened(str(error), longest=MAX_WORDS)
                is_answer = not isinstance(error, api_errors.Unavailable | api_errors.Unauthorized)
                most_seconds = MAX_UNANSWERED_SECONDS if not error.status else None
            if not is_answer:
                # A patch that goes by what the pod says may be carried out on any version of it.
                of_version = pod.version if attempt == 1 else ANY_VERSION
                self._unanswered[uid] = of_version, self._clock() + ON_ITS_WAY_SECONDS
            read = await self._read(pod)
            fresh = Pod.of(read) if read is not None else None
            if fresh is not None and not _is_as_judged(fresh, pod):
                return None  # its next version comes with the watch, and with it the next try
            if fresh is not None and is_answer and fresh.version == known.version:
                said = f"the API server does not let its scheduling gate be opened: {words}"
                return self._shuts(pod, said, not self._is_on_its_way(uid, known.version))
            if read is None or fresh is None or attempt == OPEN_TRIES:
                return self._shuts(pod, f"its scheduling gate could not be opened yet: {words}", False, most_seconds)
            known, manifest = fresh, read
        self._opened[uid] = pod.version
        self._backoff.worked(uid)
        self._shut.pop(uid, None)
        self._metrics.placed()
        uuids = ",".join(uuid for share in placed.shares for uuid in share.gpu_uuids)
        logger.info("Placed a gated pod", extra={"pod": who, "node": placed.node, "gpus": uuids})
        self._recorder.record(pod.reference, contract.EVENT_PLACED, f"placed on {placed.node}, {uuids}")
        return None

    def _is_shut(self, pod: Pod) -> Refusal | None:
        """Why its gate is not tried now."""
        uid = pod.ref.uid
        return self._shut.get(uid) if self._backoff.wait_seconds(uid, now=self._clock()) > 0 else None

    def _shuts(self, pod: Pod, sentence: str, is_refused: bool, most_seconds: float | None = None) -> Refusal:
        """It could not be opened, and is tried again after `most_seconds` at most.

        is_refused: nor will it be by what we have sent already.
        """
        refusal = Refusal(sentence, cause=Cause.REFUSED if is_refused else Cause.LEDGER)
        self._shut[pod.ref.uid] = refusal
        pause = self._backoff.failed(pod.ref.uid, now=self._clock(), most_seconds=most_seconds)
        logger.warning("A gate stays shut", extra={"pod": pod.path, "err": sentence, "pause_seconds": pause})
        return refusal

    def _is_on_its_way(self, uid: str, version: str) -> bool:
        """Whether a patch of this version of the pod may yet be carried out although its answer never came."""
        of, until = self._unanswered.get(uid, ("", 0.0))
        return of in (version, ANY_VERSION) and self._clock() < until

    def _forget_shut(self, gated: AbstractSet[str]) -> None:
        """Those are the ones that are there still, with a gate of ours."""
        self._shut = {uid: why for uid, why in self._shut.items() if uid in gated}
        self._unanswered = {uid: known for uid, known in self._unanswered.items() if uid in gated}

    def _warn(self, pod: Pod, sentence: str) -> None:
        self._recorder.record(pod.reference, contract.EVENT_GROUP_APART, sentence, type="Warning")

    async def _still_gated(self, pods: Collection[Pod]) -> list[str]:
        """Of these pods the uids of those that are gated now, by a read that lags behind nothing."""
        read = await asyncio.gather(*map(self._read, pods))
        uids = {pod.ref.uid for pod in pods}
        gated = [now.ref.uid for item in read if item is not None and (now := Pod.of(item)).is_gated]
        return [uid for uid in gated if uid in uids]

    async def _read(self, pod: Pod) -> PodJson | None:
        try:
            return await self._api.get(pod.path)
        except api_errors.ClusterError as error:
            logger.info("Could not read a gated pod", extra={"pod": pod.path, "err": str(error)})
            return None


def _is_as_judged(fresh: Pod, pod: Pod) -> bool:
    """Whether it is the same pod, still gated, and nothing has changed of what decided where it may run."""
    return (
        fresh.ref.uid == pod.ref.uid
        and fresh.is_gated
        and fresh.foreign_gates == pod.foreign_gates
        and queue.kind(fresh) == queue.kind(pod)
    )


def _is_same_version(pod: Pod) -> list[dict[str, Any]]:
    """The operations that let a JSON patch do nothing unless the pod is as we know it."""
    return _tests({"/metadata/uid": pod.ref.uid, "/metadata/resourceVersion": pod.version})


def _is_as_read(manifest: PodJson) -> list[dict[str, Any]]:
    """The same for a pod that was read whole: what decides where it may run is compared, and not its version.

    The API server tries such a patch again by itself, so that whoever writes to the pod all the time does not keep it
    from its turn.
    """
    asked = {
        f"/metadata/annotations/{difference.escaped(key)}": text
        for key, text in annotations_of(manifest).items()
        if key.startswith(contract.PREFIX)
    }
    metadata = manifest["metadata"]
    same = {"/metadata/uid": metadata["uid"], "/metadata/labels": metadata.get("labels"), "/spec": manifest["spec"]}
    return _tests({**same, **asked})


def _tests(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"op": "test", "path": path, "value": value} for path, value in values.items() if value is not None]
