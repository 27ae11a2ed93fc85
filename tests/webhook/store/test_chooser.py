from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from gpushare import codec, ledger, request
from gpushare.allocation import Memory, PodRef
from gpushare.mix import NO_HOST, Host, Mix, RequestClass
from gpushare.nodefilters import NodeSpec, PodKey, SchedulerCache, node_info
from gpushare.nodefilters.node_info import NodeInfo
from gpushare.placement import NodeView, Placement
from gpushare.refusal import Refusal
from tests import builders
from webhook.pods import mutation
from webhook.store import ledger_store
from webhook.store.chooser import Chooser
from webhook.store.ledger_store import LedgerStore
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

Json = dict[str, Any]


def node(name: str, *, cpu: str = "32", pods: str = "110") -> Json:
    return builders.node_object(name, allocatable={"cpu": cpu, "memory": "256Gi", "pods": pods})


def busy(where: str, cpu: str) -> Json:
    pod = builders.pod(f"web-{where}")
    pod["spec"] |= {"nodeName": where, "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}
    return pod


def asks(cpu: str = "4", **annotations: str) -> Json:
    pod = builders.pod(**(annotations or {"request": "0.5"}))
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return pod


def store_of(*nodes: Json, pods: tuple[Json, ...] = ()) -> MemoryStore:
    gpunodes = [codec.to_document(builders.node(node["metadata"]["name"])) for node in nodes]
    return MemoryStore(gpunodes, nodes, pods)


def place(on: LedgerStore, pod: Json) -> Placement | Refusal:
    return on.chooser.place(pod, request.parse(pod), policy="fragmentation", overrides=on.overrides)


def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the nodes whose room is checked from now on."""
    asked: list[str] = []
    why_no_room = node_info.why_no_room

    def counting(node: NodeSpec, there: NodeInfo, shape: PodKey) -> str | None:
        asked.append(node.name)
        return why_no_room(node, there, shape)

    monkeypatch.setattr(node_info, "why_no_room", counting)
    return asked


class Shown:
    """A chooser among these nodes. looked_at: nodes whose GPUs it has read, once for each time."""

    def __init__(self, *nodes: Json) -> None:
        self.looked_at: list[str] = []
        self._views = {
            item["metadata"]["name"]: NodeView.from_node(builders.node(item["metadata"]["name"])) for item in nodes
        }
        cache = SchedulerCache()
        self.chooser = Chooser(self._view, cache, key=lambda _: None)
        for item in nodes:
            cache.put_node_spec(item["metadata"]["name"], NodeSpec.from_manifest(item))

    def place(self, manifest: Json) -> Placement | Refusal:
        return self.chooser.place(manifest, request.parse(manifest), policy="fragmentation")

    def _view(self, name: str) -> NodeView | None:
        self.looked_at.append(name)
        return self._views.get(name)


def test_nodes_without_cpu_are_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"node-{number:02}" for number in range(20)]
    full = tuple(busy(name, "30") for name in names[:18])
    on = store_of(*map(node, names), pods=full)
    asked = judged(monkeypatch)
    choice = place(on, asks())
    assert isinstance(choice, Placement)
    assert choice.node in {"node-18", "node-19"}
    assert set(asked) <= {"node-18", "node-19"}


def test_a_node_that_takes_no_more_pods_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    on = store_of(node("node-a", pods="1"), node("node-b"), pods=(busy("node-a", "1"),))
    asked = judged(monkeypatch)
    choice = place(on, asks())
    assert isinstance(choice, Placement)
    assert (choice.node, asked) == ("node-b", ["node-b"])


def test_refusal_for_cpu_quotes_the_node_filter() -> None:
    on = store_of(node("node-a"), pods=(busy("node-a", "30"),))
    assert str(place(on, asks())).endswith("nearest: node-a has 2 of 32 CPUs free, 4 are requested")


def test_freed_cpu_is_used() -> None:
    on = store_of(node("node-a"), pods=(busy("node-a", "30"),))
    assert isinstance(place(on, asks()), Refusal)
    on.pod_changed(("default", "web-node-a"), None)
    assert isinstance(place(on, asks()), Placement)


def test_at_the_write_the_same_gpus_are_chosen_as_before() -> None:
    on = store_of(node("node-a"), node("node-b"))
    for number in range(12):
        pod = asks(request="0.3" if number % 2 else "0.5")
        choice = place(on, pod)
        assert isinstance(choice, Placement)
        view = on.view(choice.node)
        assert view is not None
        assert on.chooser.place_on(view, pod, request.parse(pod), policy="fragmentation") == choice
        entry = choice.allocation(request.parse(pod), allocation_id=f"a{number}", pod=PodRef("d"), reserved_until=None)
        on.change(choice.node, lambda before, entry=entry: ledger.reserve(before, entry))  # type: ignore[misc]


def reserve(rules: Reservation, pod: Json, name: str) -> mutation.Placed | Refusal:
    return asyncio.run(rules.reserve(pod, request.parse(pod), PodRef("default", name, name)))


def test_scratch_store_chooses_like_the_ledger_and_does_not_change_it() -> None:
    on = store_of(node("node-a"), node("node-b"), node("node-c"))
    rules = Reservation(on, policy="fragmentation")
    tried = ledger_store.ScratchStore(on)
    pods = [asks(gpus="2", request="1") for _ in range(6)]
    drafted = [reserve(rules.on(tried), pod, f"p{number}") for number, pod in enumerate(pods)]
    assert isinstance(reserve(rules.on(tried), asks(request="0.5"), "p7"), Refusal)
    tried.close()
    assert all(not view.node.allocations for view in on.views())
    real = [reserve(rules, pod, f"p{number}") for number, pod in enumerate(pods)]
    assert [(outcome.node, outcome.shares) for outcome in drafted if isinstance(outcome, mutation.Placed)] == [
        (outcome.node, outcome.shares) for outcome in real if isinstance(outcome, mutation.Placed)
    ]
    assert len(real) == 6


def test_exclusions_apply_to_one_pod_only() -> None:
    on = store_of(node("node-a"))
    held = builders.allocation("held", *(f"GPU-node-a-{index}" for index in range(4)), request=100, memory_gib=80)
    on.change("node-a", lambda before: ledger.reserve(before, held))
    without = ledger_store.FilteredStore(on, {"node-a": ("held",)})
    pod = asks()
    for _ in range(2):
        assert isinstance(place(on, pod), Refusal)
        assert isinstance(place(without, pod), Placement)
        assert isinstance(place(ledger_store.ScratchStore(without), pod), Placement)
    view = without.view("node-a")
    assert view == NodeView.from_node(builders.node("node-a")) or (view is not None and not view.node.allocations)


def test_updating_nodes_in_portions_does_not_change_choices() -> None:
    nodes = [node(f"node-{letter}", cpu="8" if letter in "ab" else "32") for letter in "abcdef"]
    at_once, in_portions = Shown(*nodes), Shown(*nodes)
    portions = 1
    while in_portions.chooser.update_some(2):
        portions += 1
    assert portions == 3
    assert sorted(in_portions.looked_at) == [item["metadata"]["name"] for item in nodes]
    for cpu in ("16", "4", "4"):
        assert in_portions.place(asks(cpu)) == at_once.place(asks(cpu))
    assert len(in_portions.looked_at) == len(nodes), "nothing was left for the first pod to wait for"


def test_mix_counts_cpu_and_memory_of_pods_without_a_share() -> None:
    def pod(name: str, cpu: str, *, on: str = "node-a", **more: Any) -> Json:
        made = builders.pod(name, spec={"nodeName": on, "containers": [{"name": "main"}]}, **more)
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": "1Gi"}}
        return made

    daemon = pod("daemon", "1")
    daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]
    store = MemoryStore(
        [codec.to_document(builders.node("node-a"))],
        [node("node-a"), node("node-b")],  # node-b has no GPU
        [
            pod("share", "2", request="0.5", allocation="a"),
            pod("other", "3"),
            daemon,
            pod("elsewhere", "4", on="node-b"),
        ],
    )
    assert store.chooser.mix.requested == Host(2000, 2**30)
    assert store.chooser.mix.others == Host(3000, 2**30)
    assert store.chooser.mix.host_scale == (2.0, 2.0)
    mix = store.chooser.mix
    store.pod_changed(("default", "other"), None)
    store.chooser.learn(dataclasses.replace(mix, gpus=0))
    assert store.chooser.mix.others == NO_HOST


async def test_nothing_is_counted_for_all_nodes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node(name) for name in ("node-a", "node-b", "node-c")]
    store = store_of(*nodes)
    while store.chooser.update_some(1):
        pass
    asked: list[object] = []
    monkeypatch.setattr(NodeView, "is_full", lambda *_: asked.append("full"))
    monkeypatch.setattr(SchedulerCache, "info", lambda *_: asked.append("info"))
    assert isinstance(place(store, asks(gpus="16")), Refusal)
    await store.chooser.study(Mix({RequestClass(1, 50, Memory(percent=50)): 50.0}, pods=50))
    assert not asked
