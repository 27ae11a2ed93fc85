"""The Event about a finished resize names what the pod has now."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.cluster import object_store as objects
from tests import builders
from webhook import metrics
from webhook.controllers.resizer import Resizer
from webhook.controllers.touched_nodes import Touched
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore


class Cluster:
    """Stands for the recorder, whose Events it keeps, and for an API server without quotas."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.items: tuple[Any, ...] = ()

    async def list(self, *_: Any, **__: Any) -> Cluster:
        return self

    def record(self, regarding: Any, reason: str, note: str, **_: Any) -> None:
        assert (regarding["name"], reason) == ("trainer", contract.EVENT_RESIZED)
        self.notes.append(note)


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ({"memory_limit": "60Gi"}, "has 0.5 GPU with 40Gi (limit 60Gi) now, as its annotations request"),
        ({"limit": "0.8"}, "has 0.5 GPU (limit 0.8) with 40Gi now, as its annotations request"),
        ({}, None),
    ],
)
async def test_each_changed_amount_causes_an_event(asked: dict[str, Any], note: str | None) -> None:
    entry = builders.allocation("a1", "GPU-node-a-0", request=50, memory_gib=40, uid="u")
    node = dataclasses.replace(builders.node(), allocations=(entry,))
    store, cluster = MemoryStore([codec.to_document(node)]), Cluster()
    manifest = builders.pod(request="0.5", memory="40Gi", allocation="a1", node="node-a", **asked)
    manifest["metadata"].update(uid="u", resourceVersion="1")
    manifest["spec"]["nodeName"] = "node-a"
    resizer = Resizer(cluster, store, cluster, metrics.Metrics())  # type: ignore[arg-type]
    pod = Pod.from_manifest(manifest)
    await resizer.reconcile(Touched((node,), (pod,), frozenset({node.name})), {objects.key_of(manifest): pod})
    assert cluster.notes == ([note] if note else [])
