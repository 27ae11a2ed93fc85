"""The model of the page: what a tile, the queue and the totals say, and what is left out because it is unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpushare import contract
from gpushare.gpunode import Resize
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.ui import page_model
from kubectl_gpushare.ui.page_model import ModelBuilder, Scene
from kubectl_gpushare.views import gpu_summary, gpu_table
from tests.kubectl_gpushare import sample

NODE_OBJECT = {
    "metadata": {"name": "gpu-1", "labels": {"karpenter.sh/nodepool": "training"}},
    "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-03-01T11:59:00Z"}]},
}


def measured() -> Snapshot:
    return dataclasses.replace(sample.snapshot(), usage=sample.used())


def model(snapshot: Snapshot | None = None, **scene: Any) -> dict[str, Any]:
    snapshot = measured() if snapshot is None else snapshot
    return ModelBuilder().build(Scene(snapshot, sample.NOW, usage_at=sample.NOW, **scene))


def gpu(built: dict[str, Any], name: str) -> dict[str, Any]:
    node, _, index = name.partition("/")
    item = next(item for item in built["nodes"] if item["name"] == node)
    found: dict[str, Any] = next(each for each in item["gpus"] if each["index"] == int(index))
    return found


def test_a_tile_has_the_shares_with_request_limit_and_use() -> None:
    tile = gpu(model(), "gpu-1/0")
    trainer, notebook = tile["shares"]
    assert (trainer["pod"], trainer["percent"], trainer["limit"], trainer["used"][0]) == ("ml/trainer", 50, 80, 62.0)
    assert notebook["idle"]
    assert "limit" not in notebook
    assert tile["fits"] == "0.25 + 20Gi"
    assert tile["held"] == [75, 60 * sample.GIB]


def test_tiles_agree_with_top() -> None:
    built = model()
    for summary in gpu_table.build(Snapshot(tuple(sample.nodes()), usage=sample.used())):
        if summary.gone:
            continue
        tile, item = gpu(built, summary.name), gpu_table.item(summary)
        assert tile.get("status", ["Ready"]) == item["status"]
        assert tile.get("free", [0, 0]) == [item["compute"]["freePercent"], item["memory"]["freeBytes"]]
        assert tile.get("strandedGpus", 0) == item["strandedGpus"]
        assert tile.get("reason", "") == item["reason"]


def test_what_is_unknown_is_left_out_with_the_reason() -> None:
    built = model(Snapshot(sample.nodes()), why_no_usage="saved files do not have it")
    assert built["absent"] == {
        "used": "saved files do not have it",
        "pods": "no pods were read",
        "nodes": "Nodes could not be read",
    }
    assert "used" not in gpu(built, "gpu-1/0")
    assert "used" not in built["totals"]
    assert "idle" not in built["totals"]
    assert built["queue"]["why"] == "pods were not read"
    assert built["heard"] == {}


def test_the_reason_for_a_missing_queue_is_the_one_that_the_api_server_gave() -> None:
    note = 'what pods take of their nodes: user "eve" may not list pods: ask an admin'
    built = model(Snapshot(sample.nodes(), notes=(note,)))
    assert built["queue"]["why"] == 'user "eve" may not list pods: ask an admin'


def test_the_queue_has_each_gated_pod_with_reason_nearest_miss_and_command() -> None:
    pods = {item["pod"]: item for item in model(flags=("--context=prod east",))["queue"]["pods"]}
    assert [*pods] == ["ml/just-made", "ml/waiting"]
    waiting = pods["ml/waiting"]
    assert waiting["nearest"] == "gpu-1/0"
    assert waiting["lacks"] == "has 20Gi free"
    assert waiting["reason"].endswith("4 too small, 1 unhealthy")
    assert waiting["command"] == "kubectl gpushare why waiting -n ml '--context=prod east'"
    assert pods["ml/just-made"]["reason"] == "not judged yet"


def test_the_nearest_miss_is_split_as_the_engine_writes_it() -> None:
    world = sample.snapshot().world()
    manifest = sample.gated("ml/huge", request="1", memory="79Gi", model="A100")
    from gpushare.whatif.world import RequestingPod

    refusal = str(world.place(manifest, RequestingPod.from_manifest(manifest).request))
    manifest["metadata"]["annotations"][contract.REASON] = refusal
    (item,) = model(Snapshot(sample.nodes(), (manifest,)))["queue"]["pods"]
    assert f"{item['reason']}; nearest: {item['nearest']} {item['lacks']}" == refusal


def test_a_copied_command_cannot_break_out_of_its_quotes() -> None:
    scene = Scene(Snapshot(()), 0.0)
    text = page_model.command(scene, "why", "x'; rm -rf ~ #\n\x1b[2J")
    assert text == "kubectl gpushare why 'x'\"'\"'; rm -rf ~ #��[2J'"


def test_totals_count_idle_shares_and_trouble() -> None:
    totals = model()["totals"]
    assert totals["idle"] == {"shares": 1, "gpus": 0.25}
    assert totals["trouble"] == 3  # unhealthy, gone, overcommitted
    assert totals["used"]["least"]  # an agent did not answer


def test_a_share_of_a_failed_gpu_is_not_idle() -> None:
    first, *others = sample.nodes()
    gpus = (dataclasses.replace(first.gpus[0], healthy=False), *first.gpus[1:])
    snapshot = dataclasses.replace(measured(), nodes=(dataclasses.replace(first, gpus=gpus), *others))
    _, notebook = gpu(model(snapshot), "gpu-1/0")["shares"]
    assert "idle" not in notebook
    assert model(snapshot)["totals"]["idle"] == {"shares": 0, "gpus": 0}


def test_nodes_have_their_pool_and_when_they_were_last_heard() -> None:
    built = model(dataclasses.replace(sample.snapshot(), node_objects=[NODE_OBJECT]))
    first = next(item for item in built["nodes"] if item["name"] == "gpu-1")
    assert first["pool"] == "training"
    assert built["heard"] == {"gpu-1": [round(sample.NOW) - 60, "kubelet"]}
    assert model()["heard"]["gpu-1"] == [round(sample.NOW), "agent"]


def test_a_difference_has_changed_nodes_alone() -> None:
    builder = ModelBuilder()
    before = builder.build(Scene(measured(), sample.NOW))
    same = builder.build(Scene(measured(), sample.NOW))
    assert page_model.difference(before, same) == {}
    first, *others = sample.nodes()
    fewer = dataclasses.replace(first, allocations=first.allocations[1:])
    after = builder.build(Scene(dataclasses.replace(measured(), nodes=(fewer, others[0])), sample.NOW + 1))
    changed = page_model.difference(before, after)
    assert [item["name"] for item in changed["changed"]] == ["gpu-1"]
    assert changed["gone"] == ["gpu-10"]
    assert changed["totals"]["allocated"] != before["totals"]["allocated"]


def test_a_changed_pod_state_changes_its_tile() -> None:
    builder = ModelBuilder()
    pods = [*sample.pods()]
    before = builder.build(Scene(Snapshot(sample.nodes(), pods), sample.NOW))
    pods[0] = {**pods[0], "status": {"phase": "Failed", "reason": "Evicted"}}
    after = builder.build(Scene(Snapshot(sample.nodes(), pods), sample.NOW))
    assert "state" not in gpu(before, "gpu-1/0")["shares"][0]
    assert gpu(after, "gpu-1/0")["shares"][0]["state"] == "Evicted"


def test_a_reservation_is_not_idle() -> None:
    share = gpu(model(), "gpu-2/0")["shares"][0]
    assert share["state"] == "Reserved"
    assert "idle" not in share


@pytest.mark.parametrize(
    ("prefix", "state"), [(contract.BACKFILL_PREFIX, "Held"), (contract.PREEMPTION_PREFIX, "Nominated")]
)
def test_what_is_kept_for_a_waiting_pod_is_not_idle(prefix: str, state: str) -> None:
    first, *others = sample.nodes()
    kept = dataclasses.replace(
        sample.held("ml/waiting", sample.uuid("gpu-1", 3), request=40, gib=4), id=f"{prefix}uid", reserved_until=None
    )
    nodes = (dataclasses.replace(first, allocations=(*first.allocations, kept)), *others)
    built = model(dataclasses.replace(measured(), nodes=nodes))
    share = next(share for share in gpu(built, "gpu-1/3")["shares"] if share["pod"] == "ml/waiting")
    assert (share["state"], share["hold"], share.get("idle")) == (state, True, None)
    assert built["totals"]["idle"] == model()["totals"]["idle"]


def test_lent_memory_is_a_part_of_its_own() -> None:
    first, *others = sample.nodes()
    entry = first.allocations[0]
    share = dataclasses.replace(entry.shares[0], memory_limit_bytes=60 * sample.GIB)
    entry = dataclasses.replace(entry, shares=(share, *entry.shares[1:]))
    resize = Resize(entry.id, 0, share.memory_bytes + 10 * sample.GIB, 0)
    lender = dataclasses.replace(first, allocations=(entry, *first.allocations[1:]), resizes=(resize,))
    tile = gpu(model(dataclasses.replace(measured(), nodes=(lender, *others))), "gpu-1/0")
    assert (tile["shares"][0]["lent"], tile["shares"][0]["memoryLimit"]) == (10 * sample.GIB, 60 * sample.GIB)
    assert "lent" not in tile["shares"][1]
    assert tile["held"][1] == sum(share["bytes"] + share.get("lent", 0) for share in tile["shares"])


def test_a_cordoned_node_is_no_trouble_and_one_without_agent_is() -> None:
    cordoned = {**NODE_OBJECT, "spec": {"unschedulable": True}}
    for node_object, trouble in ((cordoned, 0), ({**NODE_OBJECT, "status": {"conditions": []}}, 4)):
        built = model(dataclasses.replace(measured(), nodes=sample.nodes()[:1], node_objects=[node_object]))
        gpus = built["nodes"][0]["gpus"]
        assert built["totals"]["trouble"] == sum(each.get("trouble", False) for each in gpus)
        assert built["totals"]["trouble"] >= trouble
        assert all(each["status"] for each in gpus)
        assert gpu(built, "gpu-1/0").get("trouble", False) is bool(trouble)


def test_names_of_gpus_are_those_of_top() -> None:
    names = {
        f"{item['name']}/{each['index']}" for item in model()["nodes"] for each in item["gpus"] if "gone" not in each
    }
    assert names == {name for name in gpu_summary.names(sample.nodes()).values() if "GPU-" not in name}
