"""The plugin checks attach limits of nodes as the webhook does, using the objects that it may read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpushare import codec, contract
from gpushare.nodefilters import volumes
from gpushare.placement import Placement
from gpushare.whatif import world
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from kubectl_gpushare.planning import capacity, reasons
from kubectl_gpushare.source.snapshot import Snapshot
from tests import builders
from tests.gpushare.nodefilters import test_volume_filters as made
from tests.kubectl_gpushare.conftest import Plugin
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
    """Return the storage of two nodes; one of them can attach one volume, and has it."""
    return {
        volumes.LIMITS: [made.limited(1, "a")],
        volumes.CLAIM: [made.claim("one", "v1"), made.claim("two", "v2")],
        volumes.VOLUME: [made.disk("v1"), made.disk("v2")],
        volumes.CLASS: [made.a_class()],
        volumes.ATTACHMENT: [made.attachment("x", "a", "v1")],
    }


def taken(*pods: Json) -> Snapshot:
    nodes = (builders.node("a"),)
    return Snapshot(nodes, pods, node_objects=(builders.node_object("a"),), storage=storage())


def test_attach_limit_is_refused_in_the_webhooks_words() -> None:
    there, asked = pod("there", "one", node="a"), pod("asked", "two")
    answer = reasons.explain(asked, taken(there))
    assert answer.refusal is not None
    assert EXCEEDS in str(answer.refusal.rejected[0])
    every = [{**item, "kind": kind} for kind, items in storage().items() for item in items]
    described = builders.node_object("a")
    described["status"]["allocatable"] |= {contract.RESOURCE_PERCENT: "400", contract.RESOURCE_MEMORY: "320Gi"}
    store = MemoryStore([codec.to_document(builders.node("a"))], [described], [there], every)
    assert store.chooser.node_filter(asked)("a") == EXCEEDS
    assert reasons.explain(pod("asked", "one"), taken(there)).refusal is None
    missing = reasons.explain(pod("asked", "three"), taken(there)).refusal
    assert "cannot mount the pod's claim three, which does not exist" in str(missing)


def test_own_volumes_do_not_count_against_a_pod() -> None:
    there = pod("there", "one", node="a")
    assert reasons.explain(there, taken(there)).refusal is None
    assert EXCEEDS in str(reasons.explain(pod("asked", "two"), taken()).refusal)  # no pod mounts it now


def test_earlier_pods_use_attachments_that_later_ones_lack() -> None:
    both = [builders.node("a"), builders.node("b")]
    limits = [made.limited(2, "a"), made.limited(1, "b")]
    tried = World(
        both, [builders.node_object("a"), builders.node_object("b")], (), {**storage(), volumes.LIMITS: limits}
    )
    wanted = pod("asked", scratch=made.made_for_it("fast"))
    answer = capacity.answer(tried, [capacity.PodBatch("", RequestingPod.from_manifest(wanted), 9)])
    assert len(answer.fits[0].gpus) == 2  # and one that no pod mounts now is still attached to a
    assert "would exceed max volume count" in str(answer.fits[0].refusal)


def test_unknown_claims_are_reported() -> None:
    unknown = pod("asked", "three")
    tried = World([builders.node("a")], [builders.node_object("a")], (), storage())
    assert isinstance(tried.place(unknown, RequestingPod.from_manifest(unknown).request), Placement)
    assert tried.unknown_claims([unknown, pod("asked", "one")]) == [
        "volumes of claims that do not exist yet, such as three"
    ]
    without = {kind: items for kind, items in storage().items() if kind != volumes.CLAIM}
    tried = World([builders.node("a")], [builders.node_object("a")], (), without, claims_are_all=True)
    assert isinstance(tried.place(unknown, RequestingPod.from_manifest(unknown).request), Placement)


def test_attachments_end_with_their_pods() -> None:
    left = world.unaccounted(storage(), [pod("there", "one", node="a")])
    assert left[volumes.ATTACHMENT] == []
    assert len(world.unaccounted(storage(), [pod("there", "one", node="b")])[volumes.ATTACHMENT]) == 1


def save(path: Path, *items: Json) -> Path:
    there, asked = pod("there", "one", node="a"), pod("asked", "two")
    nodes = [codec.to_document(builders.node("a")), builders.node_object("a")]
    path.write_text(json.dumps({"kind": "List", "items": [*nodes, there, asked, *items]}))
    return path


def test_saved_objects_are_checked_and_missing_kinds_reported(plugin: Plugin, tmp_path: Path) -> None:
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
    assert "volumes of claims that do not exist yet, such as three" in ended.err


def test_claim_templates_of_a_stateful_set_count(plugin: Plugin, tmp_path: Path) -> None:
    every = [{**item, "kind": kind} for kind, items in storage().items() for item in items]
    template = {"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}}
    web = pod("web")
    made_of = {"template": {"metadata": web["metadata"], "spec": web["spec"]}, "volumeClaimTemplates": [template]}
    manifest = tmp_path / "set.json"
    manifest.write_text(json.dumps({"kind": "StatefulSet", "metadata": {"name": "web"}, "spec": made_of}))
    ended = plugin("fit", "-f", manifest, "--from", save(tmp_path / "complete.json", *every), "-o", "json")
    assert (ended.code, EXCEEDS in ended.out) == (2, True)
