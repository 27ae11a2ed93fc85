"""Plans from a GPU's present instances to the wanted ones."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.hardware import partitioner
from deviceplugin.hardware.partitioner import (
    Create,
    CreatePart,
    Destroy,
    DestroyPart,
    MigPlan,
    MigState,
    Present,
    SetMode,
)
from deviceplugin.state.node_state import ComputeInstance, GpuInstance, MigMode
from gpushare.mig import catalogue, instance_layout, profile
from gpushare.mig.instance_layout import Wanted
from tests.gpushare.mig import sequences

A100 = catalogue.MODELS["A100-40GB"]
ON, OFF = MigMode(True, True), MigMode(False, False)


def instance(number: int, name: str, start: int, *, busy: bool = False, parts: int = 1) -> GpuInstance:
    kind = A100.kind(profile.parse(name))
    assert kind is not None
    made = tuple(ComputeInstance(n, kind.gpu_slices, f"MIG-{number}-{n}", busy) for n in range(parts))
    return GpuInstance(number, kind, start, made)


def present(*instances: GpuInstance, mode: MigMode | None = ON, busy: bool = False) -> Present:
    return Present("GPU-a", mode, A100, instances, busy)


def made(gpu: Present, wanted: dict[str, int] | None, *, held: frozenset[str] = frozenset()) -> MigPlan:
    return partitioner.make_plan(gpu, None if wanted is None else instance_layout.named(wanted), held=held)


def after(gpu: Present, proposed: MigPlan) -> Present:
    """Return the GPU after the driver has executed the steps."""
    instances = list(gpu.instances)
    ids = itertools.count(100)
    for step in proposed.steps:
        match step:
            case DestroyPart(instance_id, part_id):
                target = next(instance for instance in instances if instance.id == instance_id)
                assert not any(part.busy for part in target.parts if part.id == part_id)
                kept = tuple(part for part in target.parts if part.id != part_id)
                instances[instances.index(target)] = dataclasses.replace(target, parts=kept)
            case Destroy(instance_id):
                target = next(instance for instance in instances if instance.id == instance_id)
                assert not target.parts
                instances.remove(target)
            case Create(kind, start, parts):
                number = next(ids)
                others = [(other.kind.profile, other.start) for other in instances]
                assert sequences.error(A100, [*others, (kind.profile, start)]) is None
                new_parts = tuple(ComputeInstance(n, slices, f"MIG-{number}-{n}") for n, slices in enumerate(parts))
                instances.append(GpuInstance(number, kind, start, new_parts))
            case CreatePart(instance_id, slices):
                target = next(instance for instance in instances if instance.id == instance_id)
                part = ComputeInstance(next(ids), slices, f"MIG-{instance_id}-new")
                instances[instances.index(target)] = dataclasses.replace(target, parts=(*target.parts, part))
            case SetMode(enabled):
                assert not instances
                return dataclasses.replace(gpu, mode=MigMode(enabled, enabled), instances=())
    return dataclasses.replace(gpu, instances=tuple(instances))


def counts(gpu: Present) -> Wanted:
    totals: dict[profile.Profile, int] = {}
    for instance in gpu.instances:
        for part in instance.parts:
            name = dataclasses.replace(instance.kind.profile, compute_slices=part.slices)
            totals[name] = totals.get(name, 0) + 1
    return totals


@st.composite
def gpus(draw: st.DrawFn) -> Present:
    """Draw a GPU with some instances that fit together, a few of them busy or without compute instances."""
    instances: list[GpuInstance] = []
    for number in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(A100.kinds))
        candidate = instance(
            number,
            str(kind.profile),
            draw(st.sampled_from(kind.starts)),
            busy=draw(st.booleans()) and draw(st.booleans()),
            parts=draw(st.sampled_from([1, 1, 1, 0])),
        )
        sequence = [(other.kind.profile, other.start) for other in [*instances, candidate]]
        if sequences.error(A100, sequence) is None:
            instances.append(candidate)
    return present(*instances)


WANTED = st.dictionaries(
    st.sampled_from([*(kind.profile for kind in A100.kinds), profile.parse("1c.3g.20gb")]),
    st.integers(1, 4),
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=200)
@given(gpus(), WANTED)
def test_plan_reaches_the_wanted_instances_and_keeps_those_in_use(gpu: Present, wanted: Wanted) -> None:
    proposed = partitioner.make_plan(gpu, wanted)
    busy = {part.uuid for instance in gpu.instances for part in instance.parts if part.busy}
    if proposed.state is MigState.REFUSED:
        assert instance_layout.misfit(A100, wanted)
    elif proposed.state is MigState.WAITING:
        assert set(proposed.in_the_way) == busy != set()
    else:
        done = after(gpu, proposed)
        assert counts(done) == wanted
        assert busy <= {part.uuid for instance in done.instances for part in instance.parts}
        assert partitioner.make_plan(done, wanted) == MigPlan(MigState.AS_WANTED)


@pytest.mark.slow
@settings(max_examples=100)
@given(gpus(), WANTED, st.data())
def test_interrupted_plan_is_completed_by_the_next(gpu: Present, wanted: Wanted, data: st.DataObject) -> None:
    proposed = partitioner.make_plan(gpu, wanted)
    if proposed.state is not MigState.AS_WANTED:
        return
    some = dataclasses.replace(proposed, steps=proposed.steps[: data.draw(st.integers(0, len(proposed.steps)))])
    stopped = after(gpu, some)
    again = partitioner.make_plan(stopped, wanted)
    assert again.state is MigState.AS_WANTED
    assert counts(after(stopped, again)) == wanted


def test_wanted_instances_stay_in_place() -> None:
    gpu = present(instance(1, "3g.20gb", 4, busy=True), instance(2, "1g.5gb", 0))
    proposed = made(gpu, {"3g.20gb": 1, "1g.5gb": 2})
    assert [type(step) for step in proposed.steps] == [Create]
    assert proposed.steps[0].start == 3


def test_destroys_idle_instances_and_waits_for_busy_ones() -> None:
    idle, busy = instance(1, "3g.20gb", 4), instance(1, "3g.20gb", 4, busy=True)
    assert made(present(idle), {"7g.40gb": 1}).steps[:2] == (DestroyPart(1, 0), Destroy(1))
    waits = made(present(busy), {"7g.40gb": 1})
    assert (waits.state, waits.steps, waits.in_the_way) == (MigState.WAITING, (), ("MIG-1-0",))
    assert waits.reason == "GPU-a waits until MIG-1-0 is no longer in use, before it can have 1 × 7g.40gb"


def test_held_instances_count_as_in_use() -> None:
    gpu = present(instance(1, "3g.20gb", 4))
    assert made(gpu, {"7g.40gb": 1}, held=frozenset({"MIG-1-0"})).state is MigState.WAITING
    assert made(gpu, None, held=frozenset({"MIG-1-0"})).state is MigState.WAITING


def test_impossible_requests_change_nothing() -> None:
    refused = made(present(instance(1, "3g.20gb", 4)), {"1g.5gb": 8})
    assert (refused.state, refused.steps) == (MigState.REFUSED, ())
    assert "7 × 1g.5gb would fit" in refused.reason
    assert made(present(mode=OFF), {"1g.5gb": 8}).state is MigState.REFUSED, "before MIG is turned on"
    assert "does not support MIG" in made(present(mode=None), {"1g.5gb": 1}).reason


def test_mode_change_is_a_separate_first_step() -> None:
    assert made(present(mode=OFF), {"1g.5gb": 1}).steps == (SetMode(True),)
    assert made(present(mode=OFF, busy=True), {"1g.5gb": 1}).in_the_way == ("GPU-a",)
    assert made(present(mode=OFF), {"1g.5gb": 1}, held=frozenset({"GPU-a"})).state is MigState.WAITING


def test_turns_mig_off_after_destroying_all_instances() -> None:
    proposed = made(present(instance(1, "3g.20gb", 4)), None)
    assert proposed.steps == (DestroyPart(1, 0), Destroy(1), SetMode(False))
    assert made(present(mode=OFF), None) == made(present(mode=None), None) == MigPlan(MigState.AS_WANTED)
    assert made(present(mode=MigMode(False, True)), None).steps == (SetMode(False),), "MIG is pending until a reset"


def test_completes_an_instance_without_compute_instances() -> None:
    assert made(present(instance(1, "3g.20gb", 0, parts=0)), {"1c.3g.20gb": 3}).steps == (CreatePart(1, 1),) * 3
