"""Ungater: removes gpushare's scheduling gate from pods whose share is in the ledger.

A pod is placed by two writes: its share into the ledger, with the pod's UID, then one patch that ungates the pod. If
the placer ends between them, the next placer finds a share that belongs to a gated pod, and continues from there. A
policy or another webhook may reject the patch. The patch is then retried with growing pauses, and the pod keeps no
share meanwhile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from gpushare import contract, errors
from gpushare.cluster import api_client, api_errors
from gpushare.pod import PodJson, annotations_of
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook.controllers import queue
from webhook.controllers.pacing import WriteBackoff
from webhook.controllers.pending_reasons import EventRecorder, PodClient
from webhook.metrics import Metrics
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod

logger = logging.getLogger(__name__)

PATCH_ATTEMPTS: Final = 4
MAX_UNANSWERED_SECONDS: Final = 5.0  # pause before the next attempt if the API server did not answer
MAX_BACKOFF_SECONDS: Final = 300.0
IN_FLIGHT_SECONDS: Final = 120.0  # for an unanswered patch; an API server times out after 60 s by default
ANY_VERSION: Final = "*"
MAX_WORDS: Final = 500  # characters quoted from the API server's error


@dataclasses.dataclass(eq=False)
class Ungater:
    """The ungating patches: which succeeded, which may still be in flight, and which wait for their next attempt."""

    api: PodClient
    recorder: EventRecorder
    metrics: Metrics
    _: dataclasses.KW_ONLY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._ungated: dict[str, str] = {}  # UID -> version that was patched, until our copy shows a later one
        self._failed: dict[str, Refusal] = {}  # UID -> why the last attempt failed
        self._backoff = WriteBackoff(max_seconds=MAX_BACKOFF_SECONDS)
        self._unanswered: dict[str, tuple[str, float]] = {}  # UID -> version that was patched, and until when

    async def ungate(self, pod: Pod, request: Request, placed: mutation.Placed) -> Refusal | None:
        """Ungate a placed pod; return why that failed. With the cause REFUSED, the pod's share is to be released."""
        failed = self.backoff_reason(pod)
        if failed is not None:
            return failed
        who = {"namespace": pod.ref.namespace, "name": pod.ref.name}
        known, manifest, uid = pod, pod.manifest, pod.ref.uid
        for attempt in range(1, PATCH_ATTEMPTS + 1):
            try:
                changes = mutation.patch(manifest, mutation.open_gate(manifest, request, placed))
            except errors.LedgerError as error:
                sentence = f"gets another share, because the reserved one does not match its request: {error}"
                return self._fail(pod, sentence, is_refused=not self._is_in_flight(uid, ANY_VERSION))
            try:
                known_version = {"/metadata/uid": uid or None, "/metadata/resourceVersion": pod.version or None}
                tested = known_version if attempt == 1 else _fields(manifest)
                tests = [{"op": "test", "path": path, "value": it} for path, it in tested.items() if it is not None]
                await self.api.patch(pod.path, [*tests, *changes], api_client.JSON_PATCH)
                break
            except api_errors.NotFound:
                return None  # deleted meanwhile: its share is released like that of any deleted pod
            except api_errors.ClusterError as error:
                logger.info("Could not ungate a pod", extra={"pod": who, "attempt": attempt, "err": str(error)})
                words = errors.shortened(str(error), longest=MAX_WORDS)
                is_answer = not isinstance(error, api_errors.Unavailable | api_errors.Unauthorized)
                max_seconds = MAX_UNANSWERED_SECONDS if not error.status else None
            if not is_answer:
                # A patch that tests fields instead of the version may still be applied to any version of the pod.
                version = pod.version if attempt == 1 else ANY_VERSION
                self._unanswered[uid] = version, self.clock() + IN_FLIGHT_SECONDS
            read = await self._read(pod)
            fresh = Pod.from_manifest(read) if read is not None else None
            if fresh is not None and (
                fresh.ref.uid != pod.ref.uid
                or not fresh.is_gated
                or fresh.foreign_gates != pod.foreign_gates
                or queue.kind(fresh) != queue.kind(pod)
            ):
                return None  # the watch delivers the pod's next version, which gets its own attempt
            if fresh is not None and is_answer and fresh.version == known.version:
                sentence = f"the API server rejects the removal of its scheduling gate: {words}"
                return self._fail(pod, sentence, is_refused=not self._is_in_flight(uid, known.version))
            if read is None or fresh is None or attempt == PATCH_ATTEMPTS:
                sentence = f"its scheduling gate could not be removed yet: {words}"
                return self._fail(pod, sentence, max_seconds=max_seconds)
            known, manifest = fresh, read
        self._ungated[uid] = pod.version
        self._backoff.succeeded(uid)
        self._failed.pop(uid, None)
        self.metrics.placed()
        uuids = ",".join(uuid for share in placed.shares for uuid in share.gpu_uuids)
        logger.info("Placed a gated pod", extra={"pod": who, "node": placed.node, "gpus": uuids})
        self.recorder.record(pod.reference, contract.EVENT_PLACED, f"placed on {placed.node}, {uuids}")
        return None

    def backoff_reason(self, pod: Pod) -> Refusal | None:
        return self._failed.get(pod.ref.uid) if self._wait_seconds(pod.ref.uid) > 0 else None

    def next_attempt_seconds(self) -> float | None:
        """Return how long until the first pod leaves its backoff; None if no pod is in backoff."""
        waits = (self._wait_seconds(uid) for uid in self._failed)
        return min((seconds for seconds in waits if seconds > 0), default=None)

    def ungated(self, waiting: Mapping[str, Pod]) -> Collection[str]:
        """Return the UIDs of pods that were ungated although our copy, `waiting` by UID, does not show it yet."""
        shown = {uid: waiting[uid].version for uid in self._ungated if uid in waiting}
        self._ungated = {uid: version for uid, version in self._ungated.items() if shown.get(uid) == version}
        return self._ungated

    def forget_all_but(self, gated: AbstractSet[str]) -> None:
        self._failed = {uid: why for uid, why in self._failed.items() if uid in gated}
        self._unanswered = {uid: known for uid, known in self._unanswered.items() if uid in gated}

    async def confirm_gated(self, pods: Collection[Pod]) -> set[str]:
        """Return the UIDs of those pods that a read from the API server shows as gated now."""
        read = await asyncio.gather(*map(self._read, pods))
        gated = {now.ref.uid for item in read if item is not None and (now := Pod.from_manifest(item)).is_gated}
        return gated & {pod.ref.uid for pod in pods}

    def _fail(self, pod: Pod, sentence: str, *, is_refused: bool = False, max_seconds: float | None = None) -> Refusal:
        """Put the pod into backoff, at most `max_seconds`. is_refused: no patch in flight can ungate it either."""
        refusal = Refusal(sentence, cause=Cause.REFUSED if is_refused else Cause.LEDGER)
        self._failed[pod.ref.uid] = refusal
        pause = self._backoff.failed(pod.ref.uid, now=self.clock(), max_seconds=max_seconds)
        logger.warning("A pod stays gated", extra={"pod": pod.path, "err": sentence, "pause_seconds": pause})
        return refusal

    def _is_in_flight(self, uid: str, version: str) -> bool:
        patched, until = self._unanswered.get(uid, ("", 0.0))
        return patched in (version, ANY_VERSION) and self.clock() < until

    def _wait_seconds(self, uid: str) -> float:
        return self._backoff.wait_seconds(uid, now=self.clock())

    async def _read(self, pod: Pod) -> PodJson | None:
        try:
            return await self.api.get(pod.path)
        except api_errors.ClusterError as error:
            logger.info("Could not read a gated pod", extra={"pod": pod.path, "err": str(error)})
            return None


def _fields(manifest: PodJson) -> dict[str, Any]:
    """Return the fields that decide where the pod can run, for a patch that the API server retries on conflicts.

    With the version in their place, a client that writes to the pod all the time could keep it gated.
    """
    requested = {
        f"/metadata/annotations/{mutation.escaped(key)}": text
        for key, text in annotations_of(manifest).items()
        if key.startswith(contract.PREFIX)
    }
    metadata = manifest["metadata"]
    fields = {"/metadata/uid": metadata["uid"], "/metadata/labels": metadata.get("labels"), "/spec": manifest["spec"]}
    return {**fields, **requested}
