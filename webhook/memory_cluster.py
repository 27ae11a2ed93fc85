"""A cluster in memory: admits pods as an API server would, and places gated ones by the placer's scheduler.

A placed pod is confirmed at once, and a deleted one releases its share. After each review, the state is written to a
file for `kubectl gpushare --from FILE`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonpatch

from gpushare import codec, contract, errors, ledger, pod, resizing
from gpushare import isolation as isolations
from gpushare.allocation import PodRef
from gpushare.cluster import api_client, api_errors
from gpushare.cluster import object_store as objects
from gpushare.daemon import lifecycle, probes
from gpushare.gpunode import GpuNode, Resize
from gpushare.nodefilters import volumes
from gpushare.object_parsers import read_yaml
from gpushare.placement_profile import PlacementProfile
from gpushare.pod import PodJson
from gpushare.request import Request
from webhook import review, server
from webhook.admission import Admission
from webhook.certificates import rotation
from webhook.certificates.rotation import RotationStep
from webhook.certificates.tls import Tls
from webhook.controllers import queue, resize_requests
from webhook.controllers.gated_pods.fairness import DEFAULT_LIMITS, OvertakeLimits
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.gated_pods.waiting_units import PodIndex
from webhook.controllers.resize_requests import ResizeRequest
from webhook.metrics import Metrics
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation
from webhook.webhook_settings import WebhookSettings

logger = logging.getLogger(__name__)

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # of generated names, as in Kubernetes: no vowels


class UnreadableError(ValueError):
    """The file does not describe a cluster; the message says why."""


class MemoryCluster:
    """Pods and the ledger in memory, written to the file `state`; reviews of DELETE and UPDATE apply too."""

    def __init__(
        self,
        store: MemoryStore,
        admission: Admission,
        reservation: Reservation,
        metrics: Metrics,
        pods: Iterable[Any],
        state: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        limits: OvertakeLimits = DEFAULT_LIMITS,
    ) -> None:
        self._store = store
        self._reservation = reservation
        self._admission = admission
        self._metrics = metrics
        self._pods: dict[tuple[str, str], PodJson] = {}
        self._read: dict[tuple[str, str], Pod] = {}
        self._index = PodIndex()
        for manifest in pods:
            self._put(pod.namespaced_name(manifest), manifest)
        self._state = state
        self._clock = clock
        self._scheduler = GatedPodScheduler(self, store, reservation, self, metrics, limits=limits, wall_clock=clock)
        self._one_at_a_time = asyncio.Lock()
        self.save()

    async def admit(self, request: review.AdmissionRequest) -> review.ReviewResponse:
        answer = await self._admission.answer(request)
        if not answer.allowed or request.get("dryRun") or request.get("subResource") or request.get("syntax"):
            return answer
        name = str(request.get("namespace") or "default"), str(request.get("name") or "")
        known = self._pods.get(name, {})
        if request["operation"] == "CREATE":
            patch: Any = list(answer.patch)
            stored = _stored(jsonpatch.apply_patch(request["object"], patch), request)
            annotations = pod.annotations_of(stored)
            if (identity := annotations.get(contract.ALLOCATION)) is not None:
                holder = {identity: PodRef(*pod.namespaced_name(stored), pod.uid(stored))}
                self._store.change(annotations[contract.NODE], lambda node: ledger.confirm(node, holder))
            self._put(pod.namespaced_name(stored), stored)
        elif request["operation"] == "DELETE":
            self._delete(name)
        elif contract.ALLOCATION in pod.annotations_of(known):
            kept = {key: value for key, value in pod.annotations_of(known).items() if not _is_resizable(key)}
            asked = {key: value for key, value in pod.annotations_of(request["object"]).items() if _is_resizable(key)}
            self._update(_with_annotations(known, {**kept, **asked}))
        else:
            return answer
        await self.place()
        return answer

    async def place(self) -> None:
        async with self._one_at_a_time:
            for changed in _resize(self._store, list(self._pods.values())):
                self._update(changed)
            still_gated = await self._scheduler.place(self._index, now=self._clock())
            for waiting, refusal in still_gated:
                if (manifest := self._known(waiting)) is not None:
                    annotations = {**pod.annotations_of(manifest), contract.REASON: refusal.reason}
                    self._update(_with_annotations(manifest, annotations))
            longest = queue.longest_seconds((gated for gated, _ in still_gated), now=self._clock())
            self._metrics.waiting(queue.counts(still_gated), longest_seconds=longest)
            self._store.learn()
            self.save()

    def save(self) -> None:
        if self._state is None:
            return
        chooser = self._store.chooser
        metadata = {"name": contract.PLACEMENT_CONFIG_MAP, "namespace": contract.SYSTEM_NAMESPACE}
        data = PlacementProfile(self._reservation.policy, chooser.mix, chooser.isolation).data()
        profile = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        items = [*self._store.documents(), *self._pods.values(), profile]
        state = {"apiVersion": "v1", "kind": "List", "items": items}
        new = self._state.with_name(f".{self._state.name}.new")
        new.write_text(json.dumps(state, indent=1))
        new.replace(self._state)

    def _delete(self, name: tuple[str, str]) -> None:
        gone = self._pods.get(name)
        if gone is None:
            return
        self._put(name, None)
        asked = {read.ref.uid: read.request for read in self._gated() if isinstance(read.request, Request)}

        def change(node: GpuNode) -> GpuNode:
            ids = [entry.id for entry in node.allocations if entry.pod.uid == pod.uid(gone)]
            return backfill_reservation.grown(ledger.release(node, ids), asked) if ids else node

        for node in list(self._store.stored()):
            if change(node) is not node:
                self._store.change(node.name, change)

    async def get(self, path: str) -> dict[str, Any]:
        return dict(self._at(path))

    async def patch(
        self,
        path: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        content_type: str = api_client.MERGE_PATCH,
    ) -> None:
        if content_type != api_client.JSON_PATCH:
            raise ValueError(f"a cluster in memory does not support patches of type {content_type}")
        known: Any = self._at(path)
        operations: Any = body
        try:
            self._update(jsonpatch.apply_patch(known, operations))
        except jsonpatch.JsonPatchException as error:
            raise api_errors.Invalid(str(error), status=422) from error

    def record(self, *_: Any, **__: Any) -> None:
        """Drop an Event, as `EventRecorder`."""

    def _at(self, path: str) -> PodJson:
        *_, namespace, _, name = path.split("/")
        known = self._pods.get((namespace, name))
        if known is None:
            raise api_errors.NotFound(f"there is no pod {namespace}/{name}", status=404)
        return known

    def _gated(self) -> list[Pod]:
        return [read for read in self._read.values() if read.is_gated]

    def _known(self, read: Pod) -> PodJson | None:
        known = self._pods.get((read.ref.namespace, read.ref.name))
        return known if known is not None and pod.uid(known) == read.ref.uid else None

    def _update(self, manifest: PodJson) -> None:
        name = pod.namespaced_name(manifest)
        known = self._pods.get(name)
        if known is not None and pod.uid(known) == pod.uid(manifest):
            self._put(name, manifest)

    def _put(self, name: tuple[str, str], manifest: PodJson | None) -> None:
        before, after = self._read.get(name), Pod.from_manifest(manifest) if manifest is not None else None
        if before is not None and after is not None and before.ref.uid != after.ref.uid:
            self._index.update(before, None)
            before = None
        self._index.update(before, after)
        if manifest is None or after is None:
            del self._pods[name], self._read[name]
        else:
            self._pods[name], self._read[name] = manifest, after
        self._store.pod_changed(name, manifest)


def read(path: Path, *, isolation: str = isolations.DEFAULT) -> tuple[MemoryStore, list[dict[str, Any]]]:
    """Read GPUNodes, Nodes, Namespaces, storage, pods and the profile from a file. Raises UnreadableError."""
    try:
        documents = list(read_yaml(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, errors.CodecError) as error:
        raise UnreadableError(f"cannot read {path}: {error}") from error
    kinds: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in (contract.GPUNODE_KIND, "Node", "Pod", "Namespace", "ConfigMap", *volumes.KINDS)
    }
    for item in _items(documents):
        kind = item.get("kind") if isinstance(item, dict) else None
        if kind not in kinds:
            raise UnreadableError(
                f"{path} has an object of kind {kind!r}: write GPUNode, Node, Pod, Namespace, ConfigMap, "
                f"{', '.join(volumes.KINDS)} objects, or a List"
            )
        kinds[kind].append(item)
    if not kinds[contract.GPUNODE_KIND]:
        raise UnreadableError(f"{path} has no GPUNode: add one, with its GPUs in status.gpus")
    try:
        named = [item for item in kinds["ConfigMap"] if pod.namespaced_name(item)[1] == contract.PLACEMENT_CONFIG_MAP]
        store = MemoryStore(
            kinds[contract.GPUNODE_KIND],
            kinds["Node"],
            kinds["Pod"],
            [item for kind in volumes.KINDS for item in kinds[kind]],
            namespaces=kinds["Namespace"],
            profile=PlacementProfile.read(named[0].get("data") or {}) if named else None,
            isolation=isolation,
        )
    except ValueError as error:
        raise UnreadableError(f"{path}: {error}") from error
    return store, kinds["Pod"]


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


async def run(settings: WebhookSettings, source: Path, daemon: lifecycle.Daemon) -> None:
    metrics = Metrics()
    store, pods = read(source, isolation=settings.default_isolation)
    reservation = Reservation(store, policy=settings.policy, on_conflict=metrics.conflicted)
    cluster = MemoryCluster(
        store,
        Admission(store, reservation, metrics),
        reservation,
        metrics,
        pods,
        settings.state,
        limits=dataclasses.replace(DEFAULT_LIMITS, patience_seconds=settings.patience_seconds),
    )
    await cluster.place()
    tls = Tls(settings.certificate_directory, settings.client_ca_file)
    tls.load(rotation.apply_step(RotationStep.START, None, settings.names, now=datetime.datetime.now(datetime.UTC)))
    async with (
        server.serve(cluster.admit, tls.context, host=settings.host, port=settings.port) as port,
        probes.serve({}, metrics.registry, host=settings.probe_host, port=settings.probe_port) as probe_port,
    ):
        logger.info(
            "Serving a cluster in memory",
            extra={"port": port, "probe_port": probe_port, "from": str(source), "gpunodes": len(list(store.views()))},
        )
        if settings.port_file is not None:
            settings.port_file.write_text(f"{port}\n")
        await daemon.stopping.wait()


def _resize(store: MemoryStore, pods: Sequence[PodJson]) -> list[PodJson]:
    nodes = list(store.stored())
    stored = [Pod.from_manifest(manifest) for manifest in pods]
    asked = backfill_reservation.waiting_requests(
        nodes, {objects.Key(read.ref.namespace, read.ref.name): read for read in stored}
    )
    by_node: dict[str, list[ResizeRequest]] = {}
    # Bound where they were placed, because there is no scheduler here.
    for resize_request in resize_requests.ResizeRequests().find(
        nodes, (dataclasses.replace(read, node=read.placed_on) for read in stored)
    ):
        allowed = resize_requests.within(resize_request, store.range_of(resize_request.pod.ref.namespace))
        by_node.setdefault(allowed.node, []).append(allowed)
    by_uid = {pod.uid(manifest): manifest for manifest in pods}
    changed = []
    for name, turns in by_node.items():
        node = store.change(name, functools.partial(_step_twice, turns=turns, asked=asked))
        changed += [
            _with_sentence(by_uid[resize_request.pod.ref.uid], *outcome)
            for resize_request in turns
            if (outcome := resize_requests.outcome(node, resize_request)) is not None
        ]
    return changed


def _step_twice(node: GpuNode, turns: Sequence[ResizeRequest], asked: Mapping[str, Request]) -> GpuNode:
    """Step the requests, answer as the agents would, and step again. No process runs here, so no memory is in use."""
    after = resize_requests.turn(node, turns, asked)
    words = tuple(
        Resize(entry.id, index, share.shrink_to_bytes, 0)
        for entry in after.allocations
        for index, share in enumerate(entry.shares)
        if share.shrink_to_bytes is not None
    )
    stepped = resize_requests.turn(dataclasses.replace(after, resizes=words), turns, asked)
    return dataclasses.replace(stepped, resizes=())


def _with_sentence(manifest: PodJson, shares: resizing.Shares, sentence: str) -> PodJson:
    kept = {**pod.annotations_of(manifest)}
    for key in (contract.REASON, contract.HELD):
        kept.pop(key, None)
    waits = {contract.REASON: sentence, contract.HELD: codec.shares_text(shares)} if sentence else {}
    return _with_annotations(manifest, kept | waits)


def _is_resizable(key: str) -> bool:
    return any(key == known or key.startswith(known + ".") for known in contract.RESIZABLE_KEYS)


def _with_annotations(manifest: PodJson, annotations: Mapping[str, str]) -> PodJson:
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": dict(annotations)}}
