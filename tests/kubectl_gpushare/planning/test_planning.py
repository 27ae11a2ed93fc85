"""Planned changes work when they are tried, and planning changes nothing."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract, ledger, placement, resource_quota
from gpushare.allocation import Labels
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement
from gpushare.refusal import Refusal
from gpushare.whatif import world as worlds
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from kubectl_gpushare.planning import capacity, reasons, remedies
from tests import builders
from tests.gpushare.laws import strategies
from tests.kubectl_gpushare import sample


def asked(**annotations: str) -> RequestingPod:
    return RequestingPod.from_manifest(builders.pod("asked", **annotations))


def of_sample() -> World:
    return World(sample.nodes(), None, sample.pods())


REQUESTS = st.fixed_dictionaries(
    {"request": st.sampled_from(["0.1", "0.25", "0.5", "0.75", "1"])},
    optional={
        "memory": st.sampled_from(["1Gi", "8Gi", "20Gi", "75Gi", "500Gi", "30%"]),
        "gpus": st.sampled_from(["1", "2", "3", "9"]),
        "model": st.sampled_from(["*A100*", "H100*", "Tesla*"]),
    },
)


@pytest.mark.slow
@given(st.lists(strategies.gpu_nodes(), min_size=1, max_size=3, unique_by=lambda node: node.name), REQUESTS)
@settings(max_examples=60, deadline=None)
def test_proposed_change_makes_the_pod_fit(nodes: list[GpuNode], annotations: dict[str, str]) -> None:
    world = World(nodes)
    wanted = asked(**annotations)
    before = {name: view.node for name, view in world.views.items()}
    answer = world.refuse(wanted.manifest, wanted.request)
    if isinstance(answer, Refusal):
        for change in remedies.all_of(world, wanted, answer.rejected):
            if change.key:
                again = wanted.with_annotation(change.key, change.value)
                assert again is not None
                tried = placement.place([NodeView.from_node(node) for node in nodes], again.request)
                assert isinstance(tried, Placement)
            assert change.gpus == worlds.gpus(change.placement, world.views)
    assert {name: view.node for name, view in world.views.items()} == before


@pytest.mark.slow
@given(st.lists(strategies.gpu_nodes(), min_size=1, max_size=3, unique_by=lambda node: node.name), REQUESTS)
@settings(max_examples=40, deadline=None)
def test_world_agrees_with_placement_node_by_node(nodes: list[GpuNode], annotations: dict[str, str]) -> None:
    wanted = asked(**annotations)
    world = World(nodes)
    reference = placement.place([NodeView.from_node(node) for node in nodes], wanted.request)
    assert isinstance(world.place(wanted.manifest, wanted.request), Placement) is isinstance(reference, Placement)
    choices = reasons.rank(world, wanted, most=1)
    assert bool(choices) is isinstance(reference, Placement)
    if choices:
        assert choices[0].placement == world.place(wanted.manifest, wanted.request)


def test_choices_are_unique_and_the_best_is_first() -> None:
    choices = reasons.rank(of_sample(), asked(request="0.1", memory="1Gi"), most=9)
    names = [choice.gpus for choice in choices]
    assert len(names) == len(set(names)) > 3
    assert choices[0].placement == of_sample().place(builders.pod("asked"), asked(request="0.1", memory="1Gi").request)


def test_memory_remedy_is_exact_to_one_mebibyte() -> None:
    world = of_sample()
    wanted = asked(request="1", memory="75Gi")
    answer = world.refuse(wanted.manifest, wanted.request)
    assert isinstance(answer, Refusal)
    changes = {change.kind: change for change in remedies.all_of(world, wanted, answer.rejected)}
    assert changes["memory"].sentence == 'with gpushare.io/memory "70Gi" instead of "75Gi"'
    assert changes["uncordon"].sentence == "if gpu-2/2 were uncordoned"
    assert changes["move"].sentence == "if web/small moved to gpu-1/0"


@pytest.mark.parametrize(("taken", "said"), [(75, True), (80, False), (95, False)])
def test_much_smaller_request_is_not_proposed(taken: int, said: bool) -> None:
    given = builders.allocation("a", "GPU-a-0", request=taken, memory_gib=8)
    world = World([dataclasses.replace(builders.node("a", gpus=1), allocations=(given,))])
    wanted = asked(request="1", memory="8Gi")
    answer = world.refuse(wanted.manifest, wanted.request)
    assert isinstance(answer, Refusal)
    sentences = [change.sentence for change in remedies.all_of(world, wanted, answer.rejected)]
    assert (f'with gpushare.io/request "{(100 - taken) / 100:g}" instead of "1"' in sentences) is said
    assert not any('request "0"' in sentence for sentence in sentences)


def test_fewer_gpus_and_fewer_constraints_are_proposed() -> None:
    world = of_sample()
    for written, kind, word in (
        ({"gpus": "4", "request": "1"}, "gpus", '"2" instead of "4"'),
        ({"request": "0.1", "model": "H100*"}, "model", "without gpushare.io/model"),
    ):
        wanted = asked(**written)
        answer = world.refuse(wanted.manifest, wanted.request)
        assert isinstance(answer, Refusal)
        changes = {change.kind: change.sentence for change in remedies.all_of(world, wanted, answer.rejected)}
        assert word in changes[kind]


def test_unsuitable_node_is_not_a_candidate() -> None:
    nodes = [builders.node("a"), builders.node("b")]
    world = World(nodes, [builders.node_object("a", ready="False"), builders.node_object("b")])
    answer = world.place(builders.pod("p"), asked(request="0.5").request)
    assert isinstance(answer, Placement)
    assert answer.node == "b"
    world = World(nodes, [builders.node_object("a", ready="False")])
    refused = world.refuse(builders.pod("p"), asked(request="0.5").request)
    assert isinstance(refused, Refusal)
    assert {miss.rule for miss in refused.rejected} == {"node"}


def test_earlier_pods_use_cpu_that_later_ones_lack() -> None:
    wanted = asked(request="0.1", memory="1Gi")
    wanted.manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}  # type: ignore[index]
    world = World([builders.node("a")], [builders.node_object("a")])
    answer = capacity.answer(world, [capacity.PodBatch("", RequestingPod.from_manifest(wanted.manifest), 5)])
    assert len(answer.fits[0].gpus) == 2
    assert "CPUs free" in str(answer.fits[0].refusal)


def test_counting_restores_the_world() -> None:
    world = of_sample()
    before = {name: view.node for name, view in world.views.items()}
    answer = capacity.answer(world, [capacity.PodBatch("", asked(request="0.25", memory="4Gi"), 2)])
    assert answer.all_fit
    assert answer.more
    assert {name: view.node for name, view in world.views.items()} == before
    assert world.fragmentation() == answer.before


@pytest.mark.parametrize(
    ("hard", "used", "wanted", "gpus", "said", "more"),
    [
        ("100", "0", 2, 2, "", 0),
        ("100", "50", 2, 1, f"leaves 0 of {contract.RESOURCE_PERCENT}, 50 are requested", None),
        ("40", "0", 1, 0, f"leaves 40 of {contract.RESOURCE_PERCENT}, 50 are requested", None),
        ("170", "0", 1, 1, "", 2),
    ],
)
def test_quota_bounds_how_many_pods_fit(
    hard: str, used: str, wanted: int, gpus: int, said: str, more: int | None
) -> None:
    name = f"requests.{contract.RESOURCE_PERCENT}"
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {name: hard}}, "status": {"used": {name: used}}}
    allowance = resource_quota.read(quota)
    assert allowance is not None
    batch = capacity.PodBatch("", asked(request="0.5", memory="1Gi"), wanted)
    world = World([builders.node("a", gpus=8)])
    answer = capacity.answer(world, [batch], {batch.asked.namespace: (allowance,)})
    assert (len(answer.fits[0].gpus), answer.more) == (gpus, more)
    assert said in str(answer.fits[0].refusal or "")
    assert answer.fits[0].changes == ()
    assert capacity.answer(world, [batch], {"another": (allowance,)}).all_fit


def test_quota_in_bytes_rejects_memory_in_percent() -> None:
    name = f"requests.{contract.RESOURCE_MEMORY}"
    allowance = resource_quota.read({"metadata": {"name": "gpus"}, "spec": {"hard": {name: "900Gi"}}})
    assert allowance is not None
    world = World([builders.node("a", gpus=8)])
    by_percent, in_bytes = asked(request="0.5", memory="50%"), asked(request="0.5", memory="10Gi")
    quotas = {by_percent.namespace: (allowance,)}
    answer = capacity.answer(world, [capacity.PodBatch("", by_percent, 1)], quotas)
    assert answer.fits[0].missing == 1
    assert "write gpushare.io/memory in bytes" in str(answer.fits[0].refusal)
    assert answer.fits[0].changes == ()
    assert capacity.answer(world, [capacity.PodBatch("", in_bytes, 1)], quotas).all_fit


def test_quota_bounds_exclusive_gpus() -> None:
    name = f"requests.{contract.RESOURCE_PERCENT}"
    allowance = resource_quota.read({"metadata": {"name": "gpus"}, "spec": {"hard": {name: "200"}}})
    assert allowance is not None
    labels = [asked(request="0.01", memory="1Mi", exclusion=label) for label in ("red", "green", "blue")]
    world = World([builders.node("a", gpus=8)])
    batches = [capacity.PodBatch(str(number), pod, 1) for number, pod in enumerate(labels)]
    answer = capacity.answer(world, batches, {labels[0].namespace: (allowance,)})
    assert [fit.missing for fit in answer.fits] == [0, 0, 1]
    assert 'exclusion "blue" asks for 1 exclusive GPU' in str(answer.fits[2].refusal)
    assert answer.fits[2].changes == ()
    assert capacity.answer(world, batches).all_fit


def test_why_names_the_bound_on_exclusive_gpus_and_the_remedy() -> None:
    name = f"requests.{contract.RESOURCE_PERCENT}"
    allowance = resource_quota.read({"metadata": {"name": "gpus"}, "spec": {"hard": {name: "50"}}})
    assert allowance is not None
    held = dataclasses.replace(builders.allocation("a1", "GPU-a-0"), labels=Labels(exclusion="red"))
    snapshot = dataclasses.replace(
        sample.snapshot(), nodes=(ledger.reserve(builders.node("a"), held),), node_objects=None
    )
    pod = builders.pod("asked", request="0.01", exclusion="blue")
    assert reasons.explain(pod, snapshot).refusal is None
    answer = reasons.explain(pod, snapshot, [allowance])
    assert "the namespace default already has 1 of the 1 that its ResourceQuota gpus allows" in str(answer.refusal)
    assert (
        reasons.explain(builders.pod("asked", request="0.01", exclusion="red"), snapshot, [allowance]).refusal is None
    )
    assert [change.sentence for change in answer.changes] == ['without gpushare.io/exclusion "blue"']


def test_count_equals_the_room() -> None:
    world = World([builders.node("a", gpus=2)])
    answer = capacity.answer(world, [capacity.PodBatch("", asked(request="0.3"), 1)])
    assert (answer.fits[0].missing, answer.more) == (0, 5)
    answer = capacity.answer(world, [capacity.PodBatch("", asked(request="0.3"), 9)])
    assert (answer.fits[0].missing, answer.more) == (3, None)


def test_placed_pod_is_explained_as_if_created_now() -> None:
    manifest = next(pod for pod in sample.pods() if pod["metadata"]["name"] == "trainer")
    answer = reasons.explain(manifest, sample.snapshot())
    assert answer.refusal is None
    assert answer.choices[0].gpus == "gpu-1/0"


def test_backfill_reservation_does_not_block_its_own_pod() -> None:
    hold = builders.allocation(
        f"{contract.BACKFILL_PREFIX}x", "GPU-a-0", request=100, memory_gib=80, pod_name="waits", uid="u1"
    )
    node = dataclasses.replace(builders.node("a", gpus=1), allocations=(hold,))
    manifest = builders.pod("waits", request="1")
    manifest["metadata"]["uid"] = "u1"
    assert not ledger.use(worlds.nodes_without([node], manifest)[0])["GPU-a-0"].holders
    other = builders.pod("other", request="1")
    assert isinstance(
        World(worlds.nodes_without([node], other)).place(other, RequestingPod.from_manifest(other).request), Refusal
    )


def test_foreign_gate_or_group_keeps_a_pod_waiting() -> None:
    manifest = sample.gated("ml/waiting", request="0.1", group="g", group_size="2")
    manifest["spec"]["schedulingGates"].append({"name": "example.org/gate"})
    answer = reasons.explain(manifest, sample.snapshot())
    assert answer.held_back == (
        'waits for the scheduling gate "example.org/gate", which belongs to another controller',
        'waits for its group "g": its 2 pods are placed together',
    )
