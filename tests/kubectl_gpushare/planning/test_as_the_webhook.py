"""`fit`, `why` and `defrag` place pods as the webhook does, with the policy and the mix that the placer has
published.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpushare import codec, ledger, policies
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement
from gpushare.placement_profile import PlacementProfile
from gpushare.refusal import Refusal
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import Answer, World
from tests import builders
from webhook.pods import mutation
from webhook.store.memory_store import MemoryStore

pytestmark = pytest.mark.slow

HELD, NEXT = 120, 100
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA H100 80GB HBM3")


def asks(number: int, draw: random.Random) -> dict[str, Any]:
    more = draw.choice([{}, {}, {}, {"model": "*A100*"}, {"gpus": draw.choice("24")}])
    share = draw.choice(
        [{"request": "0.25"}, {"request": "0.5", "memory": "16Gi"}, {"request": "1"}, {"memory": "6Gi"}]
    )
    manifest = builders.pod(f"pod-{number}", **{**share, **more})
    manifest["metadata"]["uid"] = f"uid-{number}"
    cpu, memory = draw.choice([("1", "4Gi"), ("6", "8Gi"), ("2", "64Gi")])
    manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": memory}}
    return manifest


class Cluster:
    """Nodes, and pods as the webhook has placed and patched them."""

    def __init__(self, policy: str) -> None:
        self.policy, self.draw = policy, random.Random(17)
        nodes = (builders.node(f"node-{number:02}", gpus=8, model=MODELS[number % 3]) for number in range(9))
        self.nodes: dict[str, GpuNode] = {node.name: node for node in nodes}
        self.node_objects = [
            builders.node_object(name, gpus=8, allocatable={"cpu": "64", "memory": "512Gi"}) for name in self.nodes
        ]
        self.pods: list[dict[str, Any]] = []
        for number in range(0, HELD, 10):  # the learned mix is renewed now and then
            store = self.webhook()
            for manifest in (asks(number + index, self.draw) for index in range(10)):
                self.place(manifest, store)

    def webhook(self) -> MemoryStore:
        return MemoryStore(map(codec.to_document, self.nodes.values()), self.node_objects, self.pods)

    def place(self, manifest: dict[str, Any], store: MemoryStore) -> None:
        request = RequestingPod.from_manifest(manifest).request
        place = store.chooser.place(manifest, request, policy=self.policy)
        if not isinstance(place, Placement):
            return
        name, uid = manifest["metadata"]["name"], manifest["metadata"]["uid"]
        identity = f"allocation-{name}"
        entry = place.allocation(request, allocation_id=identity, pod=PodRef("default", name, uid), reserved_until=None)
        self.nodes[place.node] = store.change(place.node, lambda node: ledger.reserve(node, entry))
        placed = mutation.Placed(identity, place.node, place.node, place.shares)
        self.pods.append(dict(mutation.rewrite(manifest, request, placed)))


def told(answer: Answer) -> Any:
    return (answer.node, answer.shares) if isinstance(answer, Placement) else str(answer)


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_simulated_placements_equal_the_webhooks(policy: str) -> None:
    cluster = Cluster(policy)
    store = cluster.webhook()
    assert store.chooser.mix.pods > 50
    profile = PlacementProfile.read(PlacementProfile(policy, store.chooser.mix).data())
    assert profile == PlacementProfile(policy, store.chooser.mix)
    world = World(cluster.nodes.values(), cluster.node_objects, cluster.pods, profile=profile)
    answers = []
    for number in range(NEXT):
        asked = RequestingPod.from_manifest(asks(HELD + number, cluster.draw))
        answers.append(
            (told(store.chooser.place(asked.manifest, asked.request, policy=policy)), told(world.place(*pair(asked))))
        )
    assert [mine for _, mine in answers] == [webhook for webhook, _ in answers]
    assert len({str(mine) for _, mine in answers}) > 3


def pair(asked: RequestingPod) -> tuple[Any, Any]:
    return asked.manifest, asked.request


def test_placements_differ_without_the_published_profile() -> None:
    """Proves that the test above can fail."""
    cluster = Cluster("spread")
    store = cluster.webhook()
    world = World(cluster.nodes.values(), cluster.node_objects, cluster.pods)
    pods = [RequestingPod.from_manifest(asks(HELD + number, cluster.draw)) for number in range(NEXT)]
    webhook = [told(store.chooser.place(*pair(asked), policy="spread")) for asked in pods]
    assert webhook != [told(world.place(*pair(asked))) for asked in pods]


def test_plugin_and_webhook_refuse_with_the_same_sentence() -> None:
    cluster = Cluster(policies.DEFAULT)
    asked = RequestingPod.from_manifest(builders.pod("none", request="1", gpus="8", model="*B300*"))
    refused = cluster.webhook().chooser.place(*pair(asked), policy=policies.DEFAULT)
    assert isinstance(refused, Refusal)
    assert str(World(cluster.nodes.values(), cluster.node_objects, cluster.pods).place(*pair(asked))) == str(refused)
