"""A cluster in memory: what an API server would do around an admission, and the result in a file.

Pods that are admitted get the name, uid and creation time that a real one would have got; a placed one is confirmed at
once, and one that is deleted gives its share back. After each review the gated ones have their turn and the whole state
is written to a file that `kubectl gpushare --from FILE` reads.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import jsonpatch

from gpushare import contract, errors, ledger, pod, yaml_documents
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import volumes
from gpushare.pod import PodJson
from gpushare.request import Request
from webhook import memory_resizing, review
from webhook.admission import Admission
from webhook.controllers import queue
from webhook.controllers.gated_pods import backfill, gang
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.gated_pods.pod_index import PodIndex
from webhook.metrics import Metrics
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # of generated names, as in Kubernetes: they spell nothing


class UnreadableError(ValueError):
    """The file is no cluster; the message says why."""


class MemoryCluster:
    """Admits reviews and keeps what becomes of them; `state`: where to write it, or None.

    After each review gated pods have their turn, by the placer's own code: their gates are opened where there is room
    now, and their reasons brought up to date. A review of a DELETE takes its pod away; one of an UPDATE may resize it.
    """

    def __init__(
        self,
        ledger_now: MemoryStore,
        admission: Admission,
        reservation: Reservation,
        measures: Metrics,
        pods: Iterable[Any],
        state: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        bound: backfill.Bound = backfill.DEFAULT,
    ) -> None:
        self._store = ledger_now
        self._admission = admission
        self._metrics = measures
        self._pods: dict[tuple[str, str], PodJson] = {}
        self._read: dict[tuple[str, str], Pod] = {}
        self._index = PodIndex()
        for manifest in pods:
            self._put(pod.namespaced_name(manifest), manifest)
        self._state = state
        self._clock = clock
        self._turns = GatedPodScheduler(
            ledger_now, reservation, backfill.Passes(), opens=self._open, still_gated=self._still_gated, bound=bound
        )
        self._one_at_a_time = asyncio.Lock()
        self.save()

    async def admit(self, request: review.AdmissionRequest) -> review.ReviewResponse:
        """Answer a review, and do what an API server would then do with the pod."""
        answer = await self._admission.answer(request)
        if not answer.allowed or request.get("dryRun") or request.get("subResource"):
            return answer
        name = str(request.get("namespace") or "default"), str(request.get("name") or "")
        known = self._pods.get(name, {})
        if request["operation"] == "CREATE":
            patch: Any = list(answer.patch)
            stored = _stored(jsonpatch.apply_patch(request["object"], patch), request)
            self._confirm(stored)
            self._put(pod.namespaced_name(stored), stored)
        elif request["operation"] == "DELETE":
            self._delete(name)
        elif contract.ALLOCATION in pod.annotations_of(known):
            self._keep(memory_resizing.asking(known, request["object"]))
        else:
            return answer
        await self.place()
        return answer

    async def place(self) -> None:
        """Give the gated pods their turn, and write the state."""
        async with self._one_at_a_time:
            for changed in memory_resizing.resize(self._store, list(self._pods.values())):
                self._keep(changed)
            still_gated = await self._turns.take(self._index, gang.arrange(self._read.values()), now=self._clock())
            for waiting, refusal in still_gated:
                if (manifest := self._known(waiting)) is not None:
                    annotations = {**pod.annotations_of(manifest), contract.REASON: refusal.reason}
                    self._keep({**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}})
            longest = queue.longest_seconds((gated for gated, _ in still_gated), now=self._clock())
            self._metrics.waiting(queue.counts(still_gated), longest_seconds=longest)
            self.save()

    def save(self) -> None:
        """Write the state, whole or not at all."""
        if self._state is None:
            return
        state = {"apiVersion": "v1", "kind": "List", "items": [*self._store.documents(), *self._pods.values()]}
        new = self._state.with_name(f".{self._state.name}.new")
        new.write_text(json.dumps(state, indent=1))
        new.replace(self._state)

    def _confirm(self, stored: PodJson) -> None:
        annotations = pod.annotations_of(stored)
        if contract.ALLOCATION in annotations:
            holder = PodRef(*pod.namespaced_name(stored), pod.uid(stored))
            self._store.change(
                annotations[contract.NODE],
                lambda node: ledger.confirm(node, {annotations[contract.ALLOCATION]: holder}),
            )

    def _delete(self, name: tuple[str, str]) -> None:
        gone = self._pods.get(name)
        if gone is None:
            return
        self._put(name, None)
        self._store.leave(name)
        asked = {read.ref.uid: read.request for read in self._gated() if isinstance(read.request, Request)}

        def change(node: GpuNode) -> GpuNode:
            ids = [entry.id for entry in node.allocations if entry.pod.uid == pod.uid(gone)]
            return backfill_reservation.grown(ledger.release(node, ids), asked) if ids else node

        for node in list(self._store.stored()):
            if change(node) is not node:
                self._store.change(node.name, change)

    async def _open(self, gated: Pod, request: Request, placed: mutation.Placed) -> None:
        known = self._known(gated)
        if known is not None and self._keep(mutation.open_gate(known, request, placed)):
            self._metrics.placed()

    async def _still_gated(self, pods: Collection[Pod]) -> list[str]:
        waiting = {read.ref.uid for read in self._gated()}
        return [read.ref.uid for read in pods if read.ref.uid in waiting]

    def _gated(self) -> list[Pod]:
        return [read for read in self._read.values() if read.is_gated]

    def _known(self, read: Pod) -> PodJson | None:
        """The pod as it is stored now, if it is there still."""
        known = self._pods.get((read.ref.namespace, read.ref.name))
        return known if known is not None and pod.uid(known) == read.ref.uid else None

    def _keep(self, manifest: PodJson) -> bool:
        """Store a pod's next version, if it is still there."""
        name = pod.namespaced_name(manifest)
        known = self._pods.get(name)
        if known is None or pod.uid(known) != pod.uid(manifest):
            return False
        self._put(name, manifest)
        return True

    def _put(self, name: tuple[str, str], manifest: PodJson | None) -> None:
        before, after = self._read.get(name), Pod.of(manifest) if manifest is not None else None
        if before is not None and after is not None and before.ref.uid != after.ref.uid:
            self._index.pod(before, None)
            before = None
        self._index.pod(before, after)
        if manifest is None or after is None:
            del self._pods[name], self._read[name]
        else:
            self._pods[name], self._read[name] = manifest, after


def read(path: Path) -> tuple[MemoryStore, list[dict[str, Any]]]:
    """The GPUNodes (Nodes, claims, volumes …) and the pods in a YAML or JSON file. Raises UnreadableError."""
    try:
        documents = list(yaml_documents.read(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, errors.CodecError) as error:
        raise UnreadableError(f"cannot read {path}: {error}") from error
    kinds: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in (contract.GPUNODE_KIND, "Node", "Pod", *volumes.KINDS)
    }
    for item in _items(documents):
        kind = item.get("kind") if isinstance(item, dict) else None
        if kind not in kinds:
            raise UnreadableError(
                f"{path} has an object of kind {kind!r}: write GPUNode, Node and Pod objects, or a List; "
                f"{', '.join(volumes.KINDS)} as well"
            )
        kinds[kind].append(item)
    if not kinds[contract.GPUNODE_KIND]:
        raise UnreadableError(f"{path} has no GPUNode: without one there is no GPU to give")
    try:
        storage = [item for kind in volumes.KINDS for item in kinds[kind]]
        return MemoryStore(kinds[contract.GPUNODE_KIND], kinds["Node"], kinds["Pod"], storage), kinds["Pod"]
    except ValueError as error:
        raise UnreadableError(f"{path}: {error}") from error


def _items(documents: Iterable[Any]) -> Iterable[Any]:
    for document in documents:
        if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
            yield from document.get("items") or []
        elif document is not None:
            yield document


def _stored(manifest: dict[str, Any], request: review.AdmissionRequest) -> dict[str, Any]:
    metadata = manifest.get("metadata") or {}
    suffix = "".join(random.choices(_SUFFIX, k=5))  # noqa: S311 - a name, no secret
    metadata = {
        **metadata,
        "name": metadata.get("name") or f"{metadata.get('generateName', 'pod-')}{suffix}",
        "namespace": request.get("namespace") or metadata.get("namespace") or "default",
        "uid": metadata.get("uid") or str(uuid.uuid4()),
        "creationTimestamp": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    return {"apiVersion": "v1", "kind": "Pod", **manifest, "metadata": metadata, "status": {"phase": "Pending"}}
