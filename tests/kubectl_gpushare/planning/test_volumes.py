"""What nodes can attach, as the plugin judges it: like the webhook, and of what could be read alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpushare import codec, contract
from gpushare.nodefilters import volumes
from gpushare.placement import Placement
from gpushare.whatif import world
from gpushare.whatif.world import RequestingPod, World
from kubectl_gpushare.planning import capacity, reasons
from kubectl_gpushare.source.snapshot import Snapshot
from tests import builders
from tests.gpushare.nodefilters import test_volume_limits as made
from tests.kubectl_gpushare.conftest import Plugin
from tests.kubectl_gpushare.planning.test_planning import machine
from webhook.store.memory_store import MemoryStore

EXCEEDS = made.full(1, 1)
Json = dict[str, Any]


def pod(name: str, *claims: str, node: str = "", **more: Any) -> Json:
    manifest = made.mounting(*claims, name=name, **more)
    manifest["metadata"]["annotations"] = builders.pod(request="0.1")["metadata"]["annotations"]
    if node:
        manifest["spec"]["nodeName"] = node
        manifest["metadata"]["annotations"] |= {contract.NODE: node}
    return manifest


def storage() -> dict[str, list[Json]]:
    """Of two nodes one has a limit of one, and has one volume."""
    return {
        volumes.LIMITS: [made.limited(1, "a")],
        volumes.CLAIM: [made.claim("one", "v1"), made.claim("two", "v2")],
        volumes.VOLUME: [made.disk("v1"), made.disk("v2")],
        volumes.CLASS: [made.a_class()],
        volumes.ATTACHMENT: [made.attachment("x", "a", "v1")],
    }


def taken(*pods: Json) -> Snapshot:
    nodes = (builders.node("a"),)
    return Snapshot(nodes, pods, node_objects=(machine("a"),), storage=storage())


def test_a_pod_is_refused_for_what_its_node_cannot_attach_in_the_webhooks_words() -> None:
    there, asked = pod("there", "one", node="a"), pod("asked", "two")
    answer = reasons.explain(asked, taken(there))
    assert answer.refusal is not None
    assert EXCEEDS in str(answer.refusal.rejected[0])
    every = [{**item, "kind": kind} for kind, items in storage().items() for item in items]
    described = machine("a")
    described["status"]["allocatable"] |= {contract.RESOURCE_PERCENT: "400", contract.RESOURCE_MEMORY: "320Gi"}
    store = MemoryStore([codec.to_document(builders.node("a"))], [described], [there], every)
    assert store.chooser.unfit(asked)("a") == EXCEEDS
    assert reasons.explain(pod("asked", "one"), taken(there)).refusal is None
    missing = reasons.explain(pod("asked", "three"), taken(there)).refusal
    assert "cannot have the pod's claim three, which does not exist" in str(missing)


def test_what_a_pod_has_attached_itself_is_not_in_its_way() -> None:
    there = pod("there", "one", node="a")
    assert reasons.explain(there, taken(there)).refusal is None
    assert EXCEEDS in str(reasons.explain(pod("asked", "two"), taken()).refusal)  # nobody mounts it any more


def test_each_pod_takes_what_those_after_it_cannot_have() -> None:
    both = [builders.node("a"), builders.node("b")]
    limits = [made.limited(2, "a"), made.limited(1, "b")]
    tried = World(both, [machine("a"), machine("b")], (), {**storage(), volumes.LIMITS: limits})
    wanted = pod("asked", scratch=made.made_for_it("fast"))
    answer = capacity.answer(tried, [capacity.PodBatch("", RequestingPod.of(wanted), 9)])
    assert len(answer.fits[0].gpus) == 2  # and one that nobody mounts any more is still attached to a
    assert "would exceed max volume count" in str(answer.fits[0].refusal)


def test_what_is_not_known_is_not_claimed() -> None:
    unknown = pod("asked", "three")
    tried = World([builders.node("a")], [machine("a")], (), storage())
    assert isinstance(tried.place(unknown, RequestingPod.of(unknown).request), Placement)
    assert tried.unknown_claims([unknown, pod("asked", "one")]) == [
        "volumes of claims that are not there yet, such as three"
    ]
    without = {kind: items for kind, items in storage().items() if kind != volumes.CLAIM}
    tried = World([builders.node("a")], [machine("a")], (), without, claims_are_all=True)
    assert isinstance(tried.place(unknown, RequestingPod.of(unknown).request), Placement)


def test_attachments_go_with_the_pods_that_mount_them() -> None:
    left = world.unaccounted(storage(), [pod("there", "one", node="a")])
    assert left[volumes.ATTACHMENT] == []
    assert len(world.unaccounted(storage(), [pod("there", "one", node="b")])[volumes.ATTACHMENT]) == 1


def save(path: Path, *items: Json) -> Path:
    there, asked = pod("there", "one", node="a"), pod("asked", "two")
    nodes = [codec.to_document(builders.node("a")), {**machine("a"), "kind": "Node"}]
    path.write_text(json.dumps({"kind": "List", "items": [*nodes, there, asked, *items]}))
    return path


def test_saved_objects_are_judged_and_what_was_not_saved_is_said(plugin: Plugin, tmp_path: Path) -> None:
    every = [{**item, "kind": kind} for kind, items in storage().items() for item in items]
    complete = save(tmp_path / "complete.json", *every)
    ended = plugin("why", "asked", "--from", complete, "-o", "json")
    assert EXCEEDS in ended.out
    assert "volumes" not in ended.err
    ended = plugin("why", "asked", "--from", save(tmp_path / "without.json"))
    assert "exceed" not in ended.out
    note = "volumes of claims, and how many of them nodes can attach: none were saved: save them with `kubectl get "
    assert note in " ".join((ended.out + ended.err).split())
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(pod("new", "two")))
    ended = plugin("fit", "-f", manifest, "--from", complete, "-o", "json")
    assert (ended.code, EXCEEDS in ended.out) == (2, True)
    manifest.write_text(json.dumps(pod("new", "three")))
    ended = plugin("simulate", "-f", manifest, "--from", complete, "-o", "json")
    assert "volumes of claims that are not there yet, such as three" in ended.err


def test_the_claims_of_a_stateful_set_count(plugin: Plugin, tmp_path: Path) -> None:
    every = [{**item, "kind": kind} for kind, items in storage().items() for item in items]
    template = {"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}}
    web = pod("web")
    made_of = {"template": {"metadata": web["metadata"], "spec": web["spec"]}, "volumeClaimTemplates": [template]}
    manifest = tmp_path / "set.json"
    manifest.write_text(json.dumps({"kind": "StatefulSet", "metadata": {"name": "web"}, "spec": made_of}))
    ended = plugin("fit", "-f", manifest, "--from", save(tmp_path / "complete.json", *every), "-o", "json")
    assert (ended.code, EXCEEDS in ended.out) == (2, True)
