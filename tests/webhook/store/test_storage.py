"""A replica waits for the storage objects that it may read, and works without the rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gpushare.cluster import api_client, api_errors
from gpushare.nodefilters import NodeSpec, PodAffinity, PodInfo, PodKey, SchedulerCache, volumes
from tests import builders
from tests.gpushare.cluster.waiting import until
from webhook.store import occupancy

DRIVER = "disk.example.com"


class Api(api_client.ApiClient):
    """Stands for an API server that lists some kinds and refuses others; its watches stay silent."""

    def __init__(self, *, forbids: str = "") -> None:
        self.forbids = forbids
        self.items: dict[str, list[dict[str, Any]]] = {path: [] for path in volumes.PATHS.values()}

    async def list(self, path: str, *_: object, keep: Callable[[Any], Any], **__: object) -> api_client.ObjectList[Any]:
        if path == self.forbids:
            raise api_errors.Forbidden(f"GET {path}: no such right", status=403)
        return api_client.ObjectList([keep(item) for item in self.items[path]], "1")

    @contextlib.asynccontextmanager
    async def watch(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async def nothing() -> AsyncIterator[dict[str, Any]]:
            await asyncio.Event().wait()
            yield {}

        yield nothing()

    def add(self, kind: str, name: str, namespace: str = "", **fields: Any) -> None:
        metadata = {
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            **({"namespace": namespace} if namespace else {}),
        }
        self.items[volumes.PATHS[kind]].append({"metadata": metadata, **fields})


@contextlib.asynccontextmanager
async def read(api: Api) -> AsyncIterator[tuple[SchedulerCache, occupancy.Storage]]:
    """Yield a scheduler cache with one node and one pod, filled from the API server."""
    api.add(volumes.LIMITS, "node-a", spec={"drivers": [{"name": DRIVER, "allocatable": {"count": 1}}]})
    for name in ("one", "two"):
        api.add(volumes.VOLUME, name, spec={"csi": {"driver": DRIVER, "volumeHandle": name}})
        api.add(volumes.CLAIM, name, "default", spec={"volumeName": name})
    kept = occupancy.Storage(api, lambda *changed: cache.put_storage(*changed))
    cache = SchedulerCache(knows_claims=kept.knows_claims)
    cache.put_node_spec("node-a", machine())
    cache.put("one", PodInfo.from_manifest(mounting("one"), "node-a"))
    assert kept.missing() == "the PersistentVolumes have not been read yet"
    async with asyncio.timeout(30):
        running = asyncio.create_task(kept.run())
        await kept.synced()
        assert kept.missing() is None
        try:
            yield cache, kept
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def machine() -> NodeSpec:
    ready = [{"type": "Ready", "status": "True"}]
    metadata = {"name": "node-a", "labels": {"kubernetes.io/hostname": "node-a"}}
    return NodeSpec.from_manifest({"metadata": metadata, "status": {"conditions": ready, "allocatable": {"pods": "9"}}})


def mounting(claim: str) -> dict[str, Any]:
    made = builders.pod()
    made["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    return made


def verdict(cache: SchedulerCache, claim: str) -> str | None:
    return cache.node_filter(PodKey.from_manifest(mounting(claim)), PodAffinity.from_manifest(mounting(claim)))(
        "node-a"
    )


async def test_claims_are_read_as_the_filters_need_them() -> None:
    async with read(Api()) as (cache, _):
        assert verdict(cache, "two") == (
            f"would exceed max volume count: 1 of 1 volumes of {DRIVER} are in use, and the pod adds 1"
        )
        assert verdict(cache, "one") is None
        assert verdict(cache, "three") == "cannot mount the pod's claim three, which does not exist"


@pytest.mark.parametrize("kind", [kind for kind in sorted(volumes.PATHS) if kind != volumes.VOLUME])
async def test_unreadable_kinds_are_ignored_and_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with read(Api(forbids=volumes.PATHS[kind])) as (cache, _):
        expected = kind not in {volumes.LIMITS, volumes.CLAIM}
        assert (verdict(cache, "two") is not None) == expected
        assert (verdict(cache, "three") is not None) == (kind != volumes.CLAIM)
    said = [record for record in caplog.records if "can attach" in record.getMessage()]
    assert [record.__dict__["kind"] for record in said] == [kind]
    assert "no such right" in said[0].__dict__["err"]


@contextlib.asynccontextmanager
async def reading(api: Api) -> AsyncIterator[tuple[occupancy.Storage, set[str]]]:
    """Yield a Storage that reads one object of each kind, named like its kind, and the kinds that it has read."""
    specs = {
        volumes.LIMITS: {"drivers": [{"name": DRIVER, "allocatable": {"count": 1}}]},
        volumes.ATTACHMENT: {"attacher": DRIVER, "nodeName": "node-a", "source": {"persistentVolumeName": "x"}},
    }
    for kind in volumes.KINDS:
        api.add(kind, kind, spec=specs.get(kind, {}))
    read_kinds: set[str] = set()
    kept = occupancy.Storage(api, lambda name, _, __: read_kinds.add(name[1]))
    running = asyncio.create_task(kept.run())
    try:
        async with asyncio.timeout(30):
            yield kept, read_kinds
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_missing_volumes_make_the_replica_unready() -> None:
    async with reading(Api(forbids=volumes.PATHS[volumes.VOLUME])) as (kept, read_kinds):
        await until(lambda: read_kinds == {*volumes.KINDS} - {volumes.VOLUME} and bool(kept.required.problem))
        assert kept.missing() == "the PersistentVolumes have not been read yet"


class Starting(Api):
    """An API server that is starting: it refuses every kind once, then lists volumes, and the rest late.

    goes_on: until this is set, only volumes are listed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()
        self.goes_on = asyncio.Event()

    async def list(self, path: str, *_: object, keep: Callable[[Any], Any], **__: object) -> api_client.ObjectList[Any]:
        if self.refused != {*volumes.PATHS.values()}:
            self.refused.add(path)
            raise api_errors.Forbidden(f"GET {path}: no such right", status=403)
        if path != volumes.PATHS[volumes.VOLUME]:
            await self.goes_on.wait()
        return await super().list(path, keep=keep)


async def test_refusals_of_a_starting_api_server_are_retried() -> None:
    api = Starting()
    async with reading(api) as (kept, read_kinds):
        waiting = asyncio.create_task(kept.synced())
        await until(kept.required.synced.is_set)
        assert kept.missing() == "the PersistentVolumeClaims have not been read yet"
        assert not waiting.done()
        api.goes_on.set()
        await waiting
        assert kept.missing() is None
        assert read_kinds == {*volumes.KINDS}
