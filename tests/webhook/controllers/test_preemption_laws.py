"""Laws of preemption on random clusters."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract
from gpushare.cluster import api_errors
from gpushare.defragmentation.evicting import Budgets
from gpushare.placement_profile import PlacementProfile
from kubectl_gpushare.planning import preempting, reasons
from kubectl_gpushare.source.snapshot import Snapshot
from tests import builders
from tests.webhook.controllers.preempting_cluster import OWNER, Preempting, budget, leave

SIZES = st.sampled_from(["0.25", "0.5", "1"])
ASKS = st.lists(st.tuples(SIZES, st.integers(0, 3)), min_size=1, max_size=6)


NUMBERS = st.integers(0, 5)


@pytest.mark.slow
@given(ASKS, ASKS, NUMBERS, NUMBERS)
@settings(max_examples=25, deadline=None)
def test_law_each_eviction_is_for_a_higher_priority_and_a_pod_gets_the_place(
    running: list[tuple[str, int]], waiting: list[tuple[str, int]], ending: int, refusing: int
) -> None:
    """One pod is ending at first, and the API server refuses to evict another one for a while."""

    async def story() -> None:
        cluster = Preempting(builders.node("node-a", gpus=2), builders.node("node-b", gpus=1))
        priorities = {}
        for number, (size, priority) in enumerate(running):
            await cluster.arrive(f"r{number}", request=size, priority=priority)
            name = f"r{number}"
            metadata = cluster.pods[name]["metadata"]
            cluster.pods[name] = {**cluster.pods[name], "metadata": {**metadata, "ownerReferences": [OWNER]}}
            priorities[name] = priority
        for number, (size, priority) in enumerate(waiting):
            cluster.ask(f"w{number}", request=size, priority=priority)
            priorities[f"w{number}"] = priority
        ends = [name for name in (f"r{ending}",) if name in cluster.pods and name not in cluster.waiting()]
        for name in ends:
            leave(cluster, name)
        cluster.refusing[f"r{refusing}"] = api_errors.Unavailable("Cannot evict pod", status=429)
        for number in range(4 + len(running) + len(waiting)):
            if number == 4:
                cluster.refusing.clear()
            cluster.events.clear()
            before, waited_before = len(cluster.evicted), cluster.waiting()
            told = await cluster.round()
            new = cluster.evicted[before:]
            for_whom = {name for name, reason in cluster.events if reason == contract.EVENT_PREEMPTING}
            assert len(for_whom) == bool(new)
            for name in new:
                assert all(priorities[name] < priorities[other] for other in for_whom)
            for name in [*new, *ends]:
                await cluster.end(name)  # its share is free, and kept
            ends = []
            if new:
                waited = set(cluster.waiting())
                await cluster.step()
                # A pod ahead of it in the queue may take the place.
                is_blocked = any("could not be evicted" in told[name] for name in for_whom)
                assert is_blocked or waited - set(cluster.waiting())
            elif number > 4 and not cluster.held() and cluster.waiting() == waited_before:
                break  # each kind of pod was tried, and so nothing changes any more
            cluster.time += 60.0
        assert len(cluster.evicted) == len(set(cluster.evicted))
        assert cluster.held() == {}

    asyncio.run(story())


async def crowded(dice: random.Random) -> Preempting:
    """Return a cluster that is nearly full of pods with different priorities, owners and budgets."""
    cluster = Preempting(builders.node("node-a", gpus=2), builders.node("node-b", gpus=1))
    for number in range(8):
        name = f"r{number}"
        await cluster.arrive(name, request=dice.choice(("0.25", "0.5", "1")), priority=dice.randrange(3))
        if name in cluster.waiting():
            del cluster.pods[name]
            continue
        owners = [OWNER | {"kind": kind}] if (kind := dice.choice(("ReplicaSet",) * 4 + ("Job", ""))) else []
        metadata = {**cluster.pods[name]["metadata"], "ownerReferences": owners, "labels": {"app": dice.choice("abc")}}
        cluster.pods[name] = {**cluster.pods[name], "metadata": metadata}
    cluster.budgets += [budget(app, allowed=dice.randrange(3)) for app in "ab"]
    if dice.random() < 0.2:
        leave(cluster, dice.choice(list(cluster.pods)))
    return cluster


async def test_law_why_names_the_pods_that_the_placer_evicts() -> None:
    evicting, runs = 0, 40
    for seed in range(runs):
        dice = random.Random(seed)
        cluster = await crowded(dice)
        cluster.ask("high", request=dice.choice(("0.5", "1")), priority=dice.randrange(1, 4))
        nodes = tuple(view.node for view in cluster.store.views())
        profile = PlacementProfile(policy="pack", preemption=True)
        snapshot = Snapshot(nodes, pods=list(cluster.pods.values()), profile=profile)
        found = reasons.explain(cluster.pods["high"], snapshot)
        budgets = Budgets.from_manifests(cluster.budgets)
        said = preempting.with_victims(found, cluster.pods["high"], snapshot, budgets).preemption
        done = (await cluster.round()).get("high", "").partition("; takes the place of other pods on ")[2]
        node, _, names = done.partition(": ")
        assert said == (f"will take the place of {names} on {node}: preemption is on" if done else ""), seed
        evicting += bool(done)
    assert runs / 4 < evicting < runs  # otherwise the law shows little
