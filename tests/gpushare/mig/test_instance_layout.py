"""MIG instances that fit on a GPU together."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.mig import catalogue, instance_layout, parted
from gpushare.mig.instance_layout import Geometry, PlacedInstance, Wanted
from tests.gpushare.mig import sequences

GEOMETRIES = st.sampled_from(list(catalogue.MODELS.values()))


@st.composite
def wishes(draw: st.DrawFn) -> tuple[Geometry, Wanted]:
    geometry = draw(GEOMETRIES)
    kinds = draw(st.lists(st.sampled_from(geometry.kinds), max_size=3, unique=True))
    return geometry, {kind.profile: draw(st.integers(1, 4)) for kind in kinds}


def overlap(placed: list[PlacedInstance]) -> bool:
    occupied = [place for instance in placed for place in instance.places]
    return len(occupied) != len(set(occupied))


@pytest.mark.slow
@settings(max_examples=150)
@given(wishes())
def test_a_layout_that_fits_can_be_created_in_the_returned_order(wish: tuple[Geometry, Wanted]) -> None:
    geometry, wanted = wish
    if instance_layout.misfit(geometry, wanted) is not None:
        return
    placed = instance_layout.places(geometry, [kind for kind, _ in instance_layout.instances(geometry, wanted)])
    assert placed is not None
    sequence = [(instance.kind.profile, instance.start) for instance in placed]
    assert sequences.error(geometry, sequence) is None
    assert {name: sum(name == profile for profile, _ in sequence) for name in wanted} == wanted
    assert not overlap(placed)


@pytest.mark.slow
@settings(max_examples=60)
@given(wishes())
def test_a_rejected_layout_has_no_placement_and_the_suggested_one_fits(
    wish: tuple[Geometry, Wanted],
) -> None:
    geometry, wanted = wish
    refused = instance_layout.misfit(geometry, wanted)
    if refused is None:
        return
    kinds = [kind for kind in geometry.kinds for _ in range(wanted.get(kind.profile, 0))]
    if len(kinds) <= 4:
        for starts in itertools.product(*(kind.starts for kind in kinds)):
            sequence = [(kind.profile, start) for kind, start in zip(kinds, starts, strict=True)]
            assert sequences.error(geometry, sequence) is not None
    parts = instance_layout.largest_parts(geometry, wanted)
    assert parts
    for part in parts:
        assert instance_layout.misfit(geometry, part) is None
        assert instance_layout.shown(part) in refused


@pytest.mark.slow
@settings(max_examples=60)
@given(wishes(), st.data())
def test_existing_instances_are_not_moved(wish: tuple[Geometry, Wanted], data: st.DataObject) -> None:
    geometry, wanted = wish
    kind = data.draw(st.sampled_from(geometry.kinds))
    taken = PlacedInstance(kind, data.draw(st.sampled_from(kind.starts)))
    kinds = [kind for kind, _ in instance_layout.instances(geometry, wanted)]
    placed = instance_layout.places(geometry, kinds, [taken])
    if placed is not None:
        assert not overlap([taken, *placed])


def error(model: str, **wanted: int) -> str | None:
    return instance_layout.config_error(
        catalogue.MODELS[model], {name.replace("_", "."): count for name, count in wanted.items()}
    )


def test_a_rejection_names_the_part_that_fits() -> None:
    assert error("H100-80GB", **{"2g_20gb": 3, "1g_10gb": 2}) == (
        "3 × 2g.20gb + 2 × 1g.10gb does not fit on H100-80GB: it has 7 GPU slices and 8 memory slices; "
        "3 × 2g.20gb + 1 × 1g.10gb would fit"
    )


def test_a_profile_of_another_model_is_rejected_with_the_existing_ones() -> None:
    assert error("A30-24GB", **{"3g_20gb": 1}) == (
        "A30-24GB has no profile 3g.20gb: it has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb"
    )


def test_compute_instances_share_a_gpu_instance() -> None:
    assert error("A100-40GB", **{"1c_3g_20gb": 3, "4g_20gb": 1}) is None
    assert error("A100-40GB", **{"1c_3g_20gb": 4, "4g_20gb": 1}) is not None
    ((_, sizes),) = instance_layout.instances(
        catalogue.MODELS["A100-40GB"], instance_layout.named({"2c.3g.20gb": 1, "1c.3g.20gb": 1})
    )
    assert sizes == (2, 1)


def test_huge_counts_are_rejected_quickly() -> None:
    reason = error("H100-80GB", **{"1g_10gb": 10**9, "1g_20gb": 10**9, "1c_7g_80gb": 10**9})
    assert reason is not None
    assert "7 × 1g.10gb" in reason


def test_a_request_for_all_profiles_at_once_is_rejected_quickly() -> None:
    geometry = catalogue.MODELS["A100-40GB"]
    plain = {str(kind.profile): kind.most for kind in geometry.kinds}
    slices = {f"{part}c.{kind.profile}": 7 for kind in geometry.kinds for part in range(1, kind.gpu_slices)}
    began = time.process_time()
    reason = instance_layout.config_error(geometry, {**plain, **slices})
    assert time.process_time() - began < 20, "of some ten thousand million parts only the first few are tried"
    assert reason is not None
    assert " would fit" in reason


@pytest.mark.parametrize("name", ["0c.3g.20gb", "4c.3g.20gb", "999999999c.7g.40gb"])
def test_a_compute_instance_is_smaller_than_its_gpu_instance(name: str) -> None:
    assert str(instance_layout.config_error(catalogue.MODELS["A100-40GB"], {name: 1})).startswith(
        "A100-40GB has no profile"
    )


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"1g.5gb": 9}, "mig[0] fits on no known GPU: 9 × 1g.5gb does not fit on A100-40GB"),
        ({"7g.80gb": 2}, "mig[0] fits on no known GPU: 2 × 7g.80gb does not fit on A100-80GB"),
        ({"1g.5gb": 7}, ""),
        ({"1g.10gb": 7}, ""),  # fits on an A100 with 80 GB, not with 40 GB
        ({"1g.35gb": 7}, ""),  # fits on GB300, not on H200
        ({"9g.90gb": 9}, ""),  # a newer model may have it
        ({}, ""),
    ],
)
def test_a_layout_that_fits_no_known_gpu_is_rejected_without_a_node(wanted: dict[str, int], sentence: str) -> None:
    judged = catalogue.without_node((parted.MigConfigEntry(devices=None, enabled=True, wanted=wanted),))
    assert judged.problem.startswith(sentence)
    assert bool(judged.problem) is bool(sentence)
    assert judged.warnings == ()


def test_a_layout_that_may_fit_a_newer_model_is_only_a_warning() -> None:
    entry = parted.MigConfigEntry(devices=None, enabled=True, wanted={"1g.45gb": 7})  # B200 has four
    judged = catalogue.without_node((entry,))
    assert judged.problem == ""
    (warning,) = judged.warnings
    assert warning.startswith("mig[0] fits on no known GPU: 7 × 1g.45gb does not fit on B200-180GB: ")
    assert warning.endswith("; a newer model may have other profiles of these names")


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ("all-9g.90gb", "mig is all-9g.90gb, which no known GPU supports: did you mean "),
        (
            (parted.MigConfigEntry(devices=None, enabled=True, wanted={"9g.90gb": 1}),),
            "mig[0]: no known GPU has the MIG profile 9g.90gb: did you mean ",
        ),
    ],
)
def test_an_unknown_profile_name_is_reported_separately(entries: parted.Config | str, sentence: str) -> None:
    judged = catalogue.without_node(entries)
    assert (judged.problem, judged.warnings) == ("", ())
    (unknown,) = judged.unknown
    assert unknown.startswith(sentence)


@pytest.mark.parametrize(
    ("model", "gib", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", 40, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 80, "A100-80GB"),
        ("NVIDIA A800-SXM4-80GB", 80, "A100-80GB"),
        ("NVIDIA A800 40GB Active", 40, "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", 79.6, "H100-80GB"),
        ("NVIDIA H800", 79.6, "H100-80GB"),
        ("NVIDIA H100 NVL", 93.6, "H100-94GB"),
        ("NVIDIA GH200 480GB", 95.6, "H100-96GB"),
        ("NVIDIA H20", 95.6, "H100-96GB"),
        ("NVIDIA H20-3e", 140.4, "H200-141GB"),
        ("NVIDIA GH200 144G HBM3e", 143.4, "GH200-144GB"),
        ("NVIDIA H200", 140.4, "H200-141GB"),
        ("NVIDIA B200", 179.1, "B200-180GB"),
        ("NVIDIA GB200", 185.1, "GB200-186GB"),
        ("NVIDIA GB200", 188.4, "GB200-189GB"),
        ("NVIDIA B300 SXM6 AC", 268.6, "B300-269GB"),
        ("NVIDIA GB300", 277.5, "GB300-278GB"),
        ("NVIDIA A30", 24, "A30-24GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 95.6, "RTX-PRO-6000"),
        ("NVIDIA L4", 24, None),
        ("NVIDIA A10", 24, None),
        ("NVIDIA GB10", 119, None),
        ("NVIDIA H100 80GB HBM3", 0, None),
    ],
)
def test_the_geometry_is_found_by_nvml_name_and_memory(model: str, gib: float, name: str | None) -> None:
    geometry = catalogue.of_gpu(model, int(gib * (1 << 30)))
    assert (geometry and geometry.kinds) == (name and catalogue.MODELS[name].kinds)
    assert (geometry and geometry.name) == (name and model)


@pytest.mark.parametrize("geometry", catalogue.MODELS.values(), ids=catalogue.MODELS)
def test_each_profile_fits_as_often_as_the_table_says(geometry: Geometry) -> None:
    for kind in geometry.kinds:
        assert instance_layout.misfit(geometry, {kind.profile: kind.most}) is None
        assert instance_layout.misfit(geometry, {kind.profile: kind.most + 1}) is not None


def test_orders_start_with_the_largest_and_do_not_repeat() -> None:
    wanted = instance_layout.named({"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1})
    permutations = list(instance_layout.distinct(wanted))
    assert [str(profile) for profile in permutations[0]] == ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"]
    assert len(permutations) == len(set(permutations)) == 12
    assert instance_layout.first_that_works(wanted, lambda order: order == permutations[5]) == permutations[5]
    assert instance_layout.first_that_works(wanted, lambda _: False) is None
