"""A refusal is the same as if every node were asked, however this process heard of what has changed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpushare import codec, contract, errors, ledger, request
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.cluster import api_client, api_errors
from gpushare.gpunode import GpuNode
from gpushare.placement import refusing
from gpushare.placement.grid import Bools, Grid
from gpushare.refusal import Refusal
from tests import builders
from tests.scripted_api import TURN_SECONDS, ScriptedApi
from webhook import metrics
from webhook.store import api_store, occupancy
from webhook.store.api_store import ApiStore

NAMES = ("node-a", "node-b")
PERCENT = contract.RESOURCE_PERCENT
MISFITS = refusing.misfits
STEPS = 120
Json = dict[str, Any]


class Cluster(ScriptedApi):
    """Nodes with GPUs that change at random; the watch shows some of the changes, and none at once."""

    def __init__(self, seed: int) -> None:
        super().__init__(keeps_watches=True)
        self.random, self._versions = random.Random(seed), iter(range(10, 10**6))
        self._gpunodes = {name: self._stamped(codec.to_document(builders.node(name, gpus=2))) for name in NAMES}
        self.objects[contract.GPUNODE_PATH] = [*self._gpunodes.values()]
        self.objects[api_store.NODES_PATH] = [self._node(name) for name in NAMES]

    async def get(self, path: str, query: api_client.Query | None = None) -> Json:  # noqa: ARG002
        return copy.deepcopy(self._gpunodes[path.rsplit("/", 1)[1]])

    async def replace(self, path: str, body: Mapping[str, Any], **_: Any) -> Json:
        name = path.rsplit("/", 1)[1]
        if body["metadata"]["resourceVersion"] != self._gpunodes[name]["metadata"]["resourceVersion"]:
            raise api_errors.Conflict("changed meanwhile", status=409)
        self._gpunodes[name] = self._stamped(copy.deepcopy(dict(body)))
        return copy.deepcopy(self._gpunodes[name])

    async def step(self, store: ApiStore) -> None:
        """Change one thing."""
        name, kind = self.random.choice(NAMES), self.random.random()
        if kind < 0.2:
            change = self.random.choice(("DELETED", "MODIFIED", "MODIFIED"))
            self.tell(api_store.NODES_PATH, {"type": change, "object": self._node(name)})
        elif kind < 0.4:
            self.tell(occupancy.PODS_PATH, {"type": "MODIFIED", "object": self._pod(name)})
        elif kind < 0.6:
            with contextlib.suppress(errors.GpushareError):
                await store.commit(name, self.changed)
        else:  # another replica writes
            after = self.changed(codec.read(self._gpunodes[name]))
            self._gpunodes[name] = self._stamped({**self._gpunodes[name], "spec": codec.to_spec(after)})
            if kind < 0.7:
                self.tell(contract.GPUNODE_PATH, {"type": "MODIFIED", "object": copy.deepcopy(self._gpunodes[name])})
            elif kind < 0.9:
                await store.refresh(name)
        await asyncio.sleep(self.random.choice((0, TURN_SECONDS)))

    def changed(self, node: GpuNode) -> GpuNode:
        if node.allocations and self.random.random() < 0.5:
            return ledger.release(node, [node.allocations[0].id])
        percent, identity = self.random.choice((10, 60, 100)), f"a{next(self._versions)}"
        share = GivenShare(("main",), (self.random.choice(node.gpus).uuid,), percent, 100, 1 << 30)
        try:
            return ledger.reserve(node, Allocation(identity, PodRef("default", "p", identity), (share,)))
        except errors.LedgerError:
            return node

    def asking(self) -> Json:
        made = builders.pod(request=f"0.{self.random.randint(1, 9)}", gpus=self.random.choice(("1", "2", "3")))
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": self.random.choice(("0", "3"))}}
        return made

    def _node(self, name: str) -> Json:
        offered = {PERCENT: self.random.choice(("0", "50", "120", "200"))}
        offered[contract.RESOURCE_MEMORY] = self.random.choice(("9Gi", "240Gi"))
        room = {"cpu": self.random.choice(("2", "64")), "memory": "64Gi", "pods": self.random.choice(("2", "110"))}
        made = builders.node_object(name, uid=name, allocatable={**room, **offered})
        return self._stamped({**made, "spec": {"unschedulable": self.random.random() < 0.1}})

    def _pod(self, name: str) -> Json:
        made = builders.pod(f"p{self.random.randrange(6)}")
        made["spec"] |= {"nodeName": name}
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", PERCENT: "50"}}
        return self._stamped(made)

    def _stamped(self, item: Json) -> Json:
        metadata = item["metadata"]
        stamp = {"uid": f"uid-{metadata['name']}", "resourceVersion": str(next(self._versions))}
        return {**item, "metadata": {**metadata, **stamp}}


def every_node(grid: Grid, unfit: Callable[[str], str | None], _: object) -> Bools:
    return MISFITS(grid, unfit, None)


async def test_a_refusal_is_as_if_every_node_were_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1)
    store = ApiStore(cluster, metrics.Metrics())
    running, refused = asyncio.create_task(store.run()), 0
    await asyncio.wait_for(store.synced(), 20)
    too_many = builders.pod(gpus="9")
    for _ in range(STEPS):
        store.chooser.place(too_many, request.parse(too_many), policy="pack")  # remembers what nodes offer
        await cluster.step(store)
        manifest = cluster.asking()
        asked = request.parse(manifest)
        said = store.chooser.place(manifest, asked, policy="pack")
        for name in NAMES:
            store.chooser.cache.forget(name)  # now nothing is remembered
        with monkeypatch.context() as slow:
            slow.setattr(refusing, "misfits", every_node)
            assert str(store.chooser.place(manifest, asked, policy="pack")) == str(said)
        refused += isinstance(said, Refusal)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert refused > STEPS // 4
