"""The isolation of a pod from its review to a resize: as asked, by the default, or by the table of `auto`."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import jsonpatch
import pytest

from gpushare import codec, contract, isolation, ledger
from gpushare.allocation import Allocation, Isolation
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement
from gpushare.placement_profile import PlacementProfile
from gpushare.refusal import Refusal
from gpushare.request import AUTO, DEFAULT_ISOLATIONS, Request
from gpushare.whatif.world import RequestingPod, World
from tests import builders
from tests.webhook.controllers.gated_pods.ledger_in_memory import Cluster
from webhook import metrics, review
from webhook.admission import Admission
from webhook.controllers import resize_requests
from webhook.controllers.gated_pods import fairness
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

BOTH = (Isolation.ARBITER, Isolation.MPS)


def store(*nodes: GpuNode, default: str = "arbiter") -> MemoryStore:
    return MemoryStore([codec.to_document(node) for node in nodes], isolation=default)


async def admit(there: MemoryStore, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    admission = Admission(there, Reservation(there, policy="fragmentation"), metrics.Metrics())
    request: review.AdmissionRequest = {
        "uid": "u",
        "operation": "CREATE",
        "namespace": "default",
        "dryRun": dry_run,
        "object": manifest,
    }
    answer = await admission.answer(request)
    assert answer.allowed, answer
    patched: dict[str, Any] = jsonpatch.apply_patch(manifest, list(answer.patch))
    return patched


def given(manifest: dict[str, Any]) -> str | None:
    return manifest["metadata"]["annotations"].get(contract.ISOLATION_GIVEN)


def entries(there: MemoryStore) -> list[Allocation]:
    return [entry for view in there.views() for entry in view.node.allocations]


async def test_allocation_and_annotation_have_the_kind_that_was_chosen() -> None:
    there = store(builders.node(gpus=2, isolations=BOTH))
    placed = await admit(there, builders.pod("first", request="0.5", limit="0.5", isolation="auto"))
    assert given(placed) == "mps"
    assert [entry.labels.isolation for entry in entries(there)] == [Isolation.MPS]
    leased = await admit(there, builders.pod("second", request="0.5"))
    assert given(leased) is None
    assert [entry.labels.isolation for entry in entries(there)] == [Isolation.MPS, Isolation.ARBITER]
    assert {*entries(there)[0].gpu_uuids}.isdisjoint(entries(there)[1].gpu_uuids)


async def test_dry_run_plans_what_the_admission_gives() -> None:
    for kind in ("auto", "mps", "arbiter"):
        there = store(builders.node(isolations=BOTH))
        manifest = builders.pod(request="0.5", limit="0.5", isolation=kind)
        planned = await admit(there, manifest, dry_run=True)
        assert given(planned) == given(await admit(there, manifest))


async def test_reinvoked_pod_keeps_its_kind_and_nothing_moves() -> None:
    there = store(builders.node(gpus=1, isolations=BOTH))
    placed = await admit(there, builders.pod(request="0.5", limit="0.5", isolation="auto"))
    (before,) = entries(there)
    placed["metadata"]["labels"]["other"] = "webhook"
    again = await admit(there, placed)
    assert again == placed
    assert entries(there) == [before]


async def test_reinvoked_pod_that_asks_for_another_kind_now_is_placed_again() -> None:
    there = store(builders.node(gpus=1, isolations=BOTH))
    placed = await admit(there, builders.pod(request="0.5", limit="0.5", isolation="auto"))
    placed["metadata"]["annotations"][contract.ISOLATION] = "arbiter"
    assert given(await admit(there, placed)) is None
    assert [entry.labels.isolation for entry in entries(there)] == [Isolation.ARBITER]


async def test_forged_kind_is_removed() -> None:
    there = store(builders.node(gpus=1, isolations=BOTH))
    assert given(await admit(there, builders.pod(request="0.5", isolation_given="none"))) is None


async def test_kind_that_no_gpu_offers_keeps_the_pod_gated_with_that_reason() -> None:
    there = store(builders.node(gpus=1))
    gated = await admit(there, builders.pod(request="0.5", isolation="mig"))
    assert gated["spec"]["schedulingGates"] == [{"name": contract.SCHEDULING_GATE}]
    reason = gated["metadata"]["annotations"][contract.REASON]
    assert "1 without that isolation; nearest: node-a/0 takes no shares with isolation mig, only with arbiter" in reason


@pytest.mark.parametrize("default", DEFAULT_ISOLATIONS)
async def test_default_applies_to_pods_that_name_none(default: str) -> None:
    there = store(builders.node(isolations=BOTH), default=default)
    assert given(await admit(there, builders.pod(request="0.5", limit="0.5"))) == (
        None if default == "arbiter" else "mps"
    )
    assert given(await admit(there, builders.pod(request="0.5", isolation="arbiter"))) is None


async def test_gated_pod_and_its_backfill_reservation_get_a_kind_of_their_own() -> None:
    node = builders.node(gpus=1, isolations=BOTH)
    cluster = Cluster(node, limits=fairness.OvertakeLimits(patience_seconds=60))
    for name in ("small-x", "small-y"):
        await cluster.arrive(name, request="0.5", isolation="mps")
    cluster.now += 1
    cluster.create("large", request="0.9", isolation="arbiter")
    await cluster.step()
    await cluster.end("small-x")
    cluster.now += 1
    await cluster.arrive("passer", request="0.4", isolation="mps")
    cluster.now += 61
    await cluster.step()
    (held,) = [entry for entry in entries(cluster.store) if entry.is_backfill_reservation]
    assert held.labels.isolation is Isolation.ARBITER
    await cluster.arrive("late", request="0.1", isolation="mps")
    await cluster.step()
    assert "late" in cluster.waiting()
    for name in ("small-y", "passer"):
        await cluster.end(name)
    await cluster.step()
    assert cluster.waiting() == ["late"]
    kinds = {entry.pod.name: entry.labels.isolation for entry in entries(cluster.store)}
    assert kinds == {"large": Isolation.ARBITER}


async def test_gated_pod_learns_its_kind_when_it_is_ungated() -> None:
    cluster = Cluster(builders.node(gpus=1, isolations=BOTH))
    await cluster.arrive("first", request="1", isolation="mps")
    cluster.create("second", request="0.5", limit="0.5", isolation="auto")
    await cluster.step()
    await cluster.end("first")
    await cluster.step()
    assert given(cluster.pods["second"]) == "mps"


async def test_gang_gets_leases_by_auto_and_mps_if_it_asks_for_it() -> None:
    for asked, expected in (("auto", None), ("mps", "mps")):
        cluster = Cluster(builders.node(isolations=BOTH))
        for name in ("one", "two"):
            cluster.create(name, request="0.5", isolation=asked, group="red", group_size="2")
        await cluster.step()
        assert [given(cluster.pods[name]) for name in ("one", "two")] == [expected, expected]


async def test_changed_limit_of_an_mps_client_waits_with_a_sentence() -> None:
    there = store(builders.node(gpus=1, isolations=BOTH))
    placed = await admit(there, builders.pod(request="0.5", limit="0.8", memory="8Gi", isolation="mps"))
    placed["metadata"] |= {"uid": "u-1"}
    placed["metadata"]["annotations"] |= {contract.LIMIT: "1", contract.MEMORY: "10Gi"}
    holder = {entries(there)[0].id: dataclasses.replace(entries(there)[0].pod, uid="u-1")}
    node = there.change("node-a", lambda node: ledger.confirm(node, holder))
    bound = dataclasses.replace(Pod.from_manifest(placed), node="node-a")
    (waiting,) = resize_requests.ResizeRequests().find([node], [bound])
    after = resize_requests.turn(node, [waiting], {})
    assert after is node
    outcome = resize_requests.outcome(after, waiting)
    assert outcome is not None
    assert outcome[1] == (
        "is not resized yet: its limit is 0.8, and the limit of an MPS client cannot change while it runs: set "
        "gpushare.io/limit to 0.8, or delete and recreate the pod"
    )
    placed["metadata"]["annotations"] |= {contract.LIMIT: "0.8"}
    bound = dataclasses.replace(Pod.from_manifest(placed), node="node-a")
    (possible,) = resize_requests.ResizeRequests().find([node], [bound])
    (entry,) = resize_requests.turn(node, [possible], {}).allocations
    assert entry.shares[0].memory_bytes == 10 * builders.GIB


KINDS = ["", "", "auto", "auto", "mps", "arbiter", "none", "mig"]
OFFERS = [(Isolation.ARBITER,), BOTH, BOTH, (Isolation.MPS,), (Isolation.ARBITER, Isolation.NONE), (), tuple(Isolation)]
GEOMETRY = builders.mig_geometry()


def arrival(draw: random.Random, number: int) -> RequestingPod | None:
    asked = {
        **draw.choice(
            [{"request": "0.1"}, {"request": "0.25"}, {"request": "0.5", "memory": "20Gi"}, {"request": "1"}]
        ),
        **draw.choice([{}, {}, {"latency": "true"}, {"gpus": "2"}, {"limit": "as requested"}, {"exclusion": "red"}]),
    }
    if "limit" in asked:
        asked["limit"] = asked["request"]
    kind = draw.choice(KINDS)
    if kind in {"mps", "mig"} and {"latency", "gpus"} & asked.keys():
        return None
    return RequestingPod.from_manifest(
        builders.pod(f"pod-{number}", uid=f"u-{number}", **asked, **({"isolation": kind} if kind else {}))
    )


def check(asked: Request, default: str, answer: Placement) -> None:
    word = asked.isolation or default
    if word != AUTO and asked.isolation:
        assert answer.isolation == word
    if word == AUTO:
        assert answer.isolation in BOTH


@pytest.mark.parametrize("default", DEFAULT_ISOLATIONS)
def test_law_kinds_never_meet_and_every_view_gives_the_same_answer(default: str) -> None:
    """Random arrivals and ends on mixed GPUs: the webhook's choice and that of `fit` and `why` agree."""
    draw = random.Random(f"isolation {default}")
    nodes = [
        dataclasses.replace(
            node,
            gpus=tuple(
                dataclasses.replace(gpu, isolations=draw.choice(OFFERS), mig_geometry=GEOMETRY) for gpu in node.gpus
            ),
        )
        for node in (builders.node(f"node-{number}", gpus=4) for number in range(5))
    ]
    there = store(*nodes, default=default)
    world = World(nodes, profile=PlacementProfile(isolation=default))
    placed: list[tuple[str, Allocation]] = []
    outcomes = set()
    for number in range(400):
        if placed and draw.random() < 0.4:
            name, entry = placed.pop(draw.randrange(len(placed)))
            there.change(name, lambda node, entry=entry: ledger.release(node, [entry.id]))  # type: ignore[misc]
            world.put(next(view for view in there.views() if view.node.name == name))
            continue
        arriving = arrival(draw, number)
        if arriving is None:
            continue
        answer = there.chooser.place(arriving.manifest, arriving.request, policy="fragmentation")
        again = world.place(arriving.manifest, arriving.request)
        if isinstance(answer, Refusal):
            assert str(again) == answer.reason
            assert (answer.lasts, answer.shortfall) == (again.lasts, again.shortfall)  # type: ignore[union-attr]
            outcomes.add("refused")
            continue
        assert again == answer
        check(arriving.request, default, answer)
        outcomes.add((arriving.request.isolation, answer.isolation))
        why = isolation.why(arriving.request, default, answer.isolation)
        assert "when the pod was placed" not in why
        entry = answer.allocation(
            arriving.request, allocation_id=f"a-{number}", pod=entries_pod(arriving), reserved_until=None
        )
        node = there.change(answer.node, lambda node, entry=entry: ledger.reserve(node, entry))  # type: ignore[misc]
        assert not ledger.violations(node)
        world.put(next(view for view in there.views() if view.node.name == answer.node))
        placed.append((answer.node, entry))
    given_kinds = {("auto", Isolation.MPS), ("auto", Isolation.ARBITER), *((kind, kind) for kind in ("mps", "mig"))}
    assert {*given_kinds, "refused"} <= outcomes


def entries_pod(arriving: RequestingPod) -> Any:
    name = arriving.manifest["metadata"]["name"]
    return dataclasses.replace(builders.allocation().pod, name=name, uid=f"u-{name}")
