"""One state gives one answer: the leader, a replica that starts late, and the plugin choose the same node and GPUs.

Both replicas are the product's stores and admission, on an API server in memory. The plugin reads the same objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from gpushare import codec, contract, pod
from gpushare import request as requests
from gpushare.cluster import api_client
from gpushare.mix import Mix
from gpushare.placement import Placement
from gpushare.placement_profile import PlacementProfile
from kubectl_gpushare import cli
from kubectl_gpushare.source import chosen_source, files
from tests import builders
from tests.webhook.laws.simulated_api import GPUNODES, NODES, PODS, PROFILES, SimulatedApi
from tests.webhook.laws.wire import Network, SimulatedClient
from webhook import admission, metrics, review
from webhook.store import reservation
from webhook.store.api_store import ApiStore

pytestmark = pytest.mark.slow

KINDS = (("NVIDIA A100-SXM4-80GB", 8, 12), ("NVIDIA L4", 2, 52), ("NVIDIA H100 80GB HBM3", 4, 8))  # GPUs, CPUs per GPU
OF_EACH = 8
LOADS = (0.1, 0.5, 0.9, 1.0)
NEXT = 40  # pods that are compared at each load
TRIES = 100
Json = dict[str, Any]
Chosen = tuple[str, str] | str  # node and GPUs; or why there are none


class Client(SimulatedClient):
    """A client whose calls are carried out at once; all watches then get their events."""

    async def _call(
        self, method: str, path: str, query: api_client.Query, *, body: Any = None, content_type: str = "", **_: Any
    ) -> Json:
        api = self._network.api
        answer = api.call(method, path, {**query, "seenAt": api.version}, json.loads(json.dumps(body)), content_type)
        tell(self._network)
        return answer


def tell(network: Network) -> None:
    for watch in network.watches:
        network.tell(watch, network.pending_events(watch))


class Replica:
    def __init__(self, name: str, network: Network) -> None:
        measured = metrics.Metrics()
        self.store = ApiStore(Client(network, name), measured)
        placing = reservation.Reservation(self.store, policy="fragmentation", lifetime_seconds=60.0)
        self._admission = admission.Admission(self.store, placing, measured)

    async def review(self, manifest: Json, *, dry_run: bool) -> Json:
        """Return the pod as the API server would store it."""
        asked: review.AdmissionRequest = {
            "uid": "u", "operation": "CREATE", "namespace": "default", "dryRun": dry_run, "object": manifest,
        }  # fmt: skip
        answer = await self._admission.answer(asked)
        assert answer.allowed, answer.message
        return dict(jsonpatch.apply_patch(copy.deepcopy(manifest), list(answer.patch)))

    async def choose(self, manifest: Json) -> Chosen:
        annotations = pod.annotations_of(await self.review(manifest, dry_run=True))
        if contract.NODE in annotations:
            return annotations[contract.NODE], annotations[contract.GPU_UUIDS]
        return annotations[contract.REASON]


@contextlib.asynccontextmanager
async def running(name: str, network: Network) -> AsyncIterator[Replica]:
    replica = Replica(name, network)
    task = asyncio.create_task(replica.store.run())
    await replica.store.synced()
    try:
        yield replica
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        network.cut_off(name)


class Cluster:
    """An API server in memory with nodes, and pods that arrive."""

    def __init__(self, seed: int, *, named: float) -> None:
        self.api = SimulatedApi()
        self.network = Network(self.api)
        self.asked = self.gpus = 0.0
        self._draw = random.Random(seed)
        self._named = named
        self._arrived = 0
        for model, gpus, cpus in KINDS:
            for number in range(OF_EACH):
                node = builders.node(f"{model.split()[1].lower()}-{number:02}", gpus=gpus, model=model)
                offered = {"cpu": str(cpus * gpus), "memory": "900Gi", "pods": "200"}
                self.api.create(NODES, builders.node_object(node.name, gpus=gpus, allocatable=offered))
                self.api.create(GPUNODES, codec.to_document(node))
                self.gpus += gpus

    def pods(self) -> Iterator[Json]:
        while True:
            self._arrived += 1
            shares = ({"request": "1"}, {"request": "0.5"}, {"request": "0.25", "memory": "4Gi"}, {"memory": "8Gi"})
            asks: dict[str, Any] = dict(self._draw.choices(shares, (4, 2, 2, 1))[0])
            if self._draw.random() < self._named:
                asks["model"] = self._draw.choice(("A100", "L4", "H100"))
            elif asks == {"request": "1"} and self._draw.random() < 0.2:
                asks["gpus"] = self._draw.choice("24")
            manifest = builders.pod(f"p{self._arrived}", namespace="default", **asks)
            cpu = self._draw.choice(("1", "4", "8", "16"))
            manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": "4Gi"}}
            yield manifest

    async def fill(self, load: float, pods: Iterator[Json], replica: Replica) -> None:
        """Create pods until they have requested this part of the GPUs; they are bound where they were placed."""
        while self.asked < load * self.gpus:
            manifest = next(pods)
            self.asked += size(manifest)
            stored = await replica.review(manifest, dry_run=False)
            if (node := pod.annotations_of(stored).get(contract.NODE)) is not None:
                stored["spec"]["nodeName"] = node
            self.api.create(PODS, stored)
            tell(self.network)

    def mix(self) -> Mix:
        """Return the stored mix."""
        (profile,) = self.api.all(PROFILES)
        return PlacementProfile.read(profile.get("data") or {}).mix

    def save(self, state: Path) -> None:
        """Write the objects as `kubectl get` prints them."""
        state.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*self.api.objects.values()]}))


def size(manifest: Mapping[str, Any]) -> float:
    asked = requests.parse(manifest)
    return sum(demand.gpus * max(demand.share.request_percent, 10) for demand in asked.demands) / 100


def planned(state: Path, manifests: list[Json]) -> list[Chosen]:
    """Return the plugin's choices on saved objects."""
    world = chosen_source.everything(files.Files([str(state)]), manifests).world()
    answers: list[Chosen] = []
    for manifest in manifests:
        choice = world.place(manifest, requests.parse(manifest))
        if isinstance(choice, Placement):
            answers.append((choice.node, ",".join(uuid for share in choice.shares for uuid in share.gpu_uuids)))
        else:
            answers.append(str(choice))
    return answers


def fit(state: Path, manifest: Json, file: Path) -> list[str]:
    """Return the GPUs that `kubectl gpushare fit` prints for a pod."""
    file.write_text(json.dumps(manifest))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cli.main(["fit", "-f", str(file), "--from", str(state), "-o", "json"])
    return [place for asked in json.loads(printed.getvalue())["pods"] for place in asked["gpus"]]


def in_words(chosen: Chosen) -> list[str]:
    return (
        [f"{chosen[0]}/{','.join(uuid.rpartition('-')[2] for uuid in chosen[1].split(','))}"]
        if isinstance(chosen, tuple)
        else []
    )


@pytest.mark.parametrize("named", [0.0, 0.5])
async def test_leader_follower_late_replica_and_plugin_choose_alike(named: float, tmp_path: Path) -> None:
    cluster, state = Cluster(3, named=named), tmp_path / "state.json"
    cluster.api.create(PROFILES, {"metadata": {"name": contract.PLACEMENT_CONFIG_MAP}})
    pods, learned = cluster.pods(), set()
    async with running("leader", cluster.network) as leader, running("follower", cluster.network) as follower:
        leader.store.lead(True)
        for load in LOADS:
            await cluster.fill(load, pods, leader)
            asked = [next(pods) for _ in range(NEXT)]
            async with running("late", cluster.network) as late:
                replicas = (leader, follower, late)
                for _ in range(TRIES):  # another lesson may come in between
                    before = cluster.mix()
                    answers = [[await replica.choose(manifest) for manifest in asked] for replica in replicas]
                    cluster.save(state)
                    if all(mix == before for mix in (cluster.mix(), *(it.store.chooser.mix for it in replicas))):
                        break
                    await asyncio.sleep(0)
                else:
                    pytest.fail("the replicas do not come to use one mix")
            assert [*answers, planned(state, asked)] == [answers[0]] * 4
            assert [fit(state, manifest, tmp_path / "pod.json") for manifest in asked[:3]] == [
                in_words(chosen) for chosen in answers[0][:3]
            ]
            learned.add(cluster.mix().pods)
    assert len(learned) > 2


async def test_replicas_that_learn_alone_differ() -> None:
    """Proves that the test above can fail: without the ConfigMap each replica uses what it has counted."""
    cluster = Cluster(3, named=0.5)
    pods, differing = cluster.pods(), 0
    async with running("first", cluster.network) as first:
        for load in LOADS:
            await cluster.fill(load, pods, first)
            async with running("late", cluster.network) as late:
                for manifest in (next(pods) for _ in range(NEXT)):
                    differing += await first.choose(manifest) != await late.choose(manifest)
    assert differing
