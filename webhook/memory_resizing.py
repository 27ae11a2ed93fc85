"""Resizing in a cluster in memory: what the placer and the agents would do with pods that ask for other amounts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from gpushare import codec, contract, pod, resizing
from gpushare.cluster import object_store as objects
from gpushare.gpunode import GpuNode, Resize
from gpushare.pod import PodJson
from gpushare.request import Request
from webhook.controllers.resize.resize_requests import ResizeRequest, ResizeRequests, existing, turn
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation
from webhook.store.memory_store import MemoryStore


def asking(known: PodJson, update: PodJson) -> PodJson:
    """A pod that was placed, with what an update asks for of what may change; all else stays as it is."""
    kept = {key: value for key, value in pod.annotations_of(known).items() if not _may_change(key)}
    asked = {key: value for key, value in pod.annotations_of(update).items() if _may_change(key)}
    return _with(known, {**kept, **asked})


def resize(ledger_now: MemoryStore, pods: Sequence[PodJson]) -> list[PodJson]:
    """Give each resize request its turn; return the pods of which an annotation changes by that."""
    nodes = list(ledger_now.stored())
    stored = [Pod.of(manifest) for manifest in pods]
    asked = backfill_reservation.asked_for(
        nodes, {objects.Key(read.ref.namespace, read.ref.name): read for read in stored}
    )
    by_node: dict[str, list[ResizeRequest]] = {}
    # As a scheduler would leave them, which is not here.
    for resize_request in ResizeRequests().find(
        nodes, (dataclasses.replace(read, node=read.placed_on) for read in stored)
    ):
        by_node.setdefault(resize_request.node, []).append(resize_request)
    by_uid = {pod.uid(manifest): manifest for manifest in pods}
    changed = []
    for name, resize_requests in by_node.items():
        node = ledger_now.change(name, functools.partial(_settled, resize_requests=resize_requests, asked=asked))
        changed += [
            _with_sentence(by_uid[resize_request.pod.ref.uid], said[0], said[1])
            for resize_request in resize_requests
            if (said := existing(node, resize_request)) is not None
        ]
    return changed


def _settled(node: GpuNode, resize_requests: Sequence[ResizeRequest], asked: Mapping[str, Request]) -> GpuNode:
    """After a turn, what the agents say of it, and another; no process runs here, so that nothing is in use."""
    after = turn(node, resize_requests, asked)
    words = tuple(
        Resize(entry.id, index, share.shrink_to_bytes, 0)
        for entry in after.allocations
        for index, share in enumerate(entry.shares)
        if share.shrink_to_bytes is not None
    )
    return dataclasses.replace(turn(dataclasses.replace(after, resizes=words), resize_requests, asked), resizes=())


def _with_sentence(manifest: PodJson, shares: resizing.Shares, sentence: str) -> PodJson:
    annotations = {contract.REASON: sentence, contract.HELD: codec.shares_text(shares)} if sentence else {}
    kept = {
        key: value for key, value in pod.annotations_of(manifest).items() if key not in {contract.REASON, contract.HELD}
    }
    return _with(manifest, {**kept, **annotations})


def _may_change(key: str) -> bool:
    return any(key == known or key.startswith(known + ".") for known in contract.RESIZABLE_KEYS)


def _with(manifest: PodJson, annotations: Mapping[str, str]) -> PodJson:
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": dict(annotations)}}
