"""Turns on a ledger in memory: no pod is overtaken forever, and backfill reservations keep capacity for it."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract, ledger
from gpushare.allocation import Isolation
from gpushare.gpunode import GpuNode, Resize
from tests import builders
from tests.webhook.controllers.gated_pods.ledger_in_memory import Cluster
from webhook.controllers.gated_pods import fairness
from webhook.store import avoided_nodes, backfill_reservation


async def test_large_pod_is_overtaken_only_so_often() -> None:
    cluster = Cluster(builders.node("node-a", gpus=1), limits=fairness.OvertakeLimits(patience_seconds=60))
    await cluster.arrive("small-x", request="0.5")
    await cluster.arrive("small-y", request="0.5")
    cluster.now += 1
    cluster.create("large", request="1")
    await cluster.step()
    assert cluster.held() == {}
    await cluster.end("small-x")
    cluster.now += 1
    await cluster.arrive("passer", request="0.5")
    cluster.now += 61
    await cluster.step()
    assert cluster.held() == {"large": 0}
    assert cluster.told["large"].endswith("; freed capacity is reserved for it on node-a")
    await cluster.end("small-y")
    assert cluster.held() == {"large": 50}
    cluster.now += 1
    await cluster.arrive("late", request="0.25")
    await cluster.step()
    assert "late" in cluster.waiting()
    assert cluster.told["late"].startswith("gives way to default/large, for which freed capacity")
    await cluster.end("passer")
    await cluster.step()
    assert cluster.waiting() == ["late"]
    assert cluster.held() == {}


def mig_node(gpus: int) -> GpuNode:
    kinds = (Isolation.ARBITER, Isolation.MIG)
    return builders.node(gpus=gpus, isolations=kinds, mig_geometry=builders.mig_geometry())


async def test_pod_that_waits_for_an_idle_gpu_to_cut_is_overtaken_only_so_often() -> None:
    cluster = Cluster(mig_node(1), limits=fairness.OvertakeLimits(max_overtakes=2))
    await cluster.arrive("first", request="0.1")
    cluster.now += 1
    cluster.create("cut", request="0.1", memory="8Gi", isolation="mig")
    for name in ("second", "third"):
        cluster.now += 1
        await cluster.arrive(name, request="0.1")
        await cluster.step()
    assert cluster.held() == {"cut": 70}, "what is free"
    cluster.now += 1
    await cluster.arrive("late", request="0.1")
    assert "late" in cluster.waiting(), "the GPU is to become idle"
    for name in ("first", "second", "third"):
        await cluster.end(name)
        await cluster.step()
    assert cluster.waiting() == ["late"]
    assert cluster.held() == {}
    assert cluster.order[-1] == "cut"


async def test_pod_that_waits_for_a_place_of_its_mig_device_is_overtaken_only_so_often() -> None:
    cluster = Cluster(mig_node(1), limits=fairness.OvertakeLimits(max_overtakes=1))
    for name in ("first", "second"):
        await cluster.arrive(name, request="0.4", memory="8Gi", isolation="mig")  # two 3g.40gb
    cluster.now += 1
    cluster.create("large", request="0.5", memory="8Gi", isolation="mig")  # a 4g.40gb
    await cluster.step()
    await cluster.end("second")
    cluster.now += 1
    await cluster.arrive("small", request="0.1", memory="8Gi", isolation="mig")
    await cluster.step()
    assert list(cluster.held()) == ["large"]
    cluster.now += 1
    await cluster.arrive("late", request="0.1", memory="8Gi", isolation="mig")
    assert "late" in cluster.waiting(), "there is a place for its device, but it would overtake"
    for name in ("first", "small"):
        await cluster.end(name)
        await cluster.step()
    assert cluster.order[-2:] == ["large", "late"]


async def test_pod_that_is_not_overtaken_gets_no_backfill_reservation() -> None:
    cluster = Cluster(builders.node("node-a", gpus=1), limits=fairness.OvertakeLimits(patience_seconds=1))
    await cluster.arrive("small", request="0.5")
    cluster.now += 1
    cluster.create("large", request="1")
    cluster.now += 1000
    await cluster.step()
    assert cluster.held() == {}


@pytest.mark.parametrize("lent_gib", [0, 60])
async def test_pod_that_waits_for_lent_memory_gets_a_backfill_reservation(lent_gib: int) -> None:
    borrower = builders.allocation("borrower", "GPU-a-0", request=10, memory_gib=10, uid="u")
    (share,) = borrower.shares
    share = dataclasses.replace(share, gpu_uuids=(builders.node(gpus=1).gpus[0].uuid,), memory_limit_bytes=80 << 30)
    node = ledger.reserve(builders.node(gpus=1), dataclasses.replace(borrower, shares=(share,)))
    lent = Resize("borrower", 0, (10 + lent_gib) << 30, 0)
    cluster = Cluster(dataclasses.replace(node, resizes=(lent,)), limits=fairness.OvertakeLimits(patience_seconds=60))
    cluster.create("large", request="0.5", memory="75Gi" if not lent_gib else "40Gi")
    cluster.now += 1
    await cluster.step()
    assert (cluster.waiting(), cluster.held()) == (["large"], {})
    cluster.now += 60
    await cluster.step()
    assert cluster.held() == ({"large": 50} if lent_gib else {})
    cluster.store.change("node-a", lambda now: dataclasses.replace(now, resizes=()))
    await cluster.step()
    assert cluster.waiting() == ([] if lent_gib else ["large"])


async def test_pod_that_fits_nowhere_gets_no_backfill_reservation() -> None:
    cluster = Cluster(
        builders.node("node-a", gpus=1), limits=fairness.OvertakeLimits(patience_seconds=0, max_overtakes=1)
    )
    cluster.create("impossible", request="1", gpus="2")
    cluster.now += 1
    await cluster.arrive("small", request="0.5")
    await cluster.step()
    assert cluster.held() == {}


async def test_backfill_reservation_is_chosen_again_after_the_clock_went_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(
        builders.node("node-a", gpus=1), limits=fairness.OvertakeLimits(patience_seconds=0, max_overtakes=1)
    )
    searched: list[int] = []
    choose = backfill_reservation.choose
    monkeypatch.setattr(
        backfill_reservation, "choose", lambda *args, **more: searched.append(1) or choose(*args, **more)
    )
    cluster.create("impossible", request="1", gpus="2")
    cluster.now += 1
    await cluster.arrive("small", request="0.5")
    for _ in range(2):
        await cluster.step()
    assert len(searched) == 1
    cluster.now -= 3600.0
    await cluster.step()
    assert len(searched) == 2


async def test_higher_priority_pod_takes_over_a_backfill_reservation() -> None:
    cluster = Cluster(
        builders.node("node-a", gpus=2), limits=fairness.OvertakeLimits(patience_seconds=0, max_overtakes=1)
    )
    await cluster.arrive("one", request="0.5")
    cluster.create("large", request="1", gpus="2")
    cluster.now += 1
    await cluster.arrive("two", request="0.5")
    await cluster.step()
    assert cluster.held() == {"large": 100}
    cluster.create("urgent", request="1", priority=10)
    await cluster.step()
    assert cluster.waiting() == ["large"]


async def test_overtaken_gang_gets_a_backfill_reservation() -> None:
    nodes = (builders.node("node-a", gpus=1), builders.node("node-b", gpus=1))
    cluster = Cluster(*nodes, limits=fairness.OvertakeLimits(patience_seconds=0, max_overtakes=1))
    for name in ("w", "x", "y", "z"):
        await cluster.arrive(name, request="0.5")
    cluster.now += 1
    for number in range(2):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="2")
    await cluster.end("w")
    cluster.now += 1
    await cluster.arrive("passer", request="0.5")
    await cluster.step()
    assert cluster.held() == {"worker-0": 0, "worker-1": 0}
    for name in ("x", "y", "z", "passer"):
        await cluster.end(name)
        cluster.now += 1
        await cluster.arrive(f"after-{name}", request="0.5")
        await cluster.step()
    assert {"worker-0", "worker-1"} <= set(cluster.order)
    assert not {"worker-0", "worker-1"} & set(cluster.waiting())


SMALL = st.lists(
    st.tuples(st.sampled_from(["0.25", "0.5", "0.75", "1"]), st.integers(1, 6), st.booleans()), min_size=40, max_size=40
)


@pytest.mark.slow
@settings(max_examples=75, deadline=None)
@given(stream=SMALL, gpus=st.integers(1, 3), large=st.integers(1, 3), isolation=st.sampled_from(["arbiter", "mig"]))
async def test_law_fitting_pod_is_placed_after_bounded_overtakes(
    stream: list[tuple[str, int, bool]], gpus: int, large: int, isolation: str
) -> None:
    """If every pod ends, the GPUs reserved for an entitled pod lose other pods with time."""
    bound = fairness.OvertakeLimits(patience_seconds=1e9, max_overtakes=5)
    cluster = Cluster(mig_node(gpus), builders.node("node-b", gpus=1), limits=bound)
    for number in range(4 * (gpus + 1)):
        await cluster.arrive(f"first-{number}", request="0.25")
    cluster.now += 1
    if isolation == "mig":
        cluster.create("large", request="0.1", isolation=isolation)
    else:
        cluster.create("large", request="1", gpus=str(min(large, gpus)))
    ends = {f"first-{number}": number % 7 for number in range(4 * (gpus + 1))}
    others: dict[str, int] | None = None
    since = len(cluster.order)
    for tick, (request, life, at_admission) in enumerate(stream):
        cluster.now += 1
        for name in [name for name, at in ends.items() if at <= tick and name not in cluster.waiting()]:
            del ends[name]
            await cluster.end(name)
        name = f"pod-{tick}"
        if at_admission:
            await cluster.arrive(name, request=request)
        else:
            cluster.create(name, request=request)
        ends[name] = tick + life
        passed = len(cluster.order) - since
        await cluster.step()
        if "large" in cluster.order:
            break
        if "large" in cluster.held():
            now = cluster.others_where_held("large")
            assert others is None or all(now[uuid] <= others[uuid] for uuid in now), (others, now)
            others = now
        else:
            assert others is None
            assert passed < bound.max_overtakes
    assert "large" in cluster.order


async def test_growing_shares_count_as_overtaking() -> None:
    cluster = Cluster(builders.node(gpus=1), limits=fairness.OvertakeLimits(max_overtakes=2))
    await cluster.arrive("large", request="0.6")
    cluster.create("waits", priority=1, request="0.5")
    await cluster.step()
    for _ in range(2):
        assert cluster.held() == {}
        cluster.scheduler.overtakes.grew(cluster.stored()["large"])
    await cluster.step()
    assert cluster.held() == {"waits": 40}


async def test_namespace_has_one_backfill_reservation_at_a_time() -> None:
    cluster = Cluster(builders.node(gpus=2), limits=fairness.OvertakeLimits(max_overtakes=1))
    for name in ("a", "b"):
        await cluster.arrive(name, request="0.6")
    for name, namespace in (("first", "default"), ("second", "default"), ("third", "other")):
        cluster.now += 1
        cluster.create(name, namespace=namespace, request="1")
    await cluster.step()
    cluster.now += 1
    await cluster.arrive("small", request="0.1")
    await cluster.step()
    assert set(cluster.held()) == {"first", "third"}


async def test_pod_with_an_invalid_request_loses_its_backfill_reservation() -> None:
    cluster = Cluster(builders.node(gpus=1), limits=fairness.OvertakeLimits(max_overtakes=1))
    await cluster.arrive("there", request="0.6")
    cluster.create("large", request="1")
    cluster.now += 1
    await cluster.arrive("small", request="0.2")
    await cluster.step()
    assert set(cluster.held()) == {"large"}
    cluster.pods["large"] = copy.deepcopy(cluster.pods["large"])
    cluster.pods["large"]["metadata"]["annotations"][contract.REQUEST] = "0.9"
    await cluster.step()
    assert cluster.told["large"].startswith("its gpushare.io annotations no longer match")
    assert cluster.held() == {}


async def test_pod_blocked_from_a_node_does_not_block_similar_pods() -> None:
    barred = avoided_nodes.Avoided({"node-a": "could not take it before"}, frozenset())
    cluster = Cluster(
        builders.node(gpus=1),
        avoided=lambda manifest: barred if manifest["metadata"]["name"] == "barred" else avoided_nodes.NO_AVOIDED,
    )
    for name in ("barred", "other"):
        cluster.create(name, request="0.2")
        cluster.now += 1
    await cluster.step()
    assert cluster.order == ["other"]
    assert "node-a could not take it before" in cluster.told["barred"]
