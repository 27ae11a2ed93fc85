"""Names of MIG profiles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.mig import profile
from gpushare.mig.profile import Profile

NUMBERS = st.integers(0, 10**6)
WORDS = st.lists(st.from_regex(r"[a-z]{1,4}(\.[a-z]{1,4})?", fullmatch=True), max_size=3, unique=True).map(
    lambda words: tuple(sorted(words))
)


@pytest.mark.slow
@settings(max_examples=100)
@given(gpu=NUMBERS, memory=NUMBERS, compute=NUMBERS, words=WORDS, lacking=st.booleans())
def test_a_printed_profile_is_parsed_back(
    gpu: int, memory: int, compute: int, words: tuple[str, ...], lacking: bool
) -> None:
    original = Profile(gpu, memory, compute, with_=() if lacking else words, without=words if lacking else ())
    assert profile.parse(str(original)) == original


@settings(max_examples=200)
@given(st.text(alphabet="0123456789cgb.+-me, ", max_size=16))
def test_any_text_is_a_profile_or_an_error_that_quotes_it(text: str) -> None:
    try:
        result = profile.parse(text)
    except profile.ProfileError as error:
        assert '"' in str(error)
    else:
        assert profile.parse(str(result)) == result


def test_compute_slices_are_named_only_when_fewer_than_gpu_slices() -> None:
    assert str(profile.parse("3c.3g.40gb+me")) == "3g.40gb+me"
    assert str(profile.parse("1c.3g.40gb+me")) == "1c.3g.40gb+me"
    assert profile.parse("3c.3g.40gb") == profile.parse("3g.40gb") == profile.parse("1c.3g.40gb").gpu_instance


def test_attributes_are_the_same_in_any_order() -> None:
    assert profile.parse("1g.5gb+you,me") == profile.parse("1g.5gb+me,you")


@pytest.mark.parametrize(
    "name", ["1g.5gb\n", "１g.5gb", "1g.5gb+me\n", "1g.5gb+mé", "1g.5gb--me", "1G.5GB", "c.1g.5gb"]
)
def test_text_that_resembles_a_profile_is_rejected(name: str) -> None:
    with pytest.raises(profile.ProfileError):
        profile.parse(name)


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("3g.40gb", "nvidia.com/mig-3g.40gb"),
        ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("1c.3g.40gb", None),
    ],
)
def test_only_whole_gpu_instances_have_a_resource_name(name: str, resource: str | None) -> None:
    assert profile.parse(name).resource == resource


@pytest.mark.parametrize(
    ("total_gib", "mib", "number"), [(141, 71424, 71), (180, 22912, 23), (186, 46900, 47), (24, 3072, 3)]
)
def test_half_gigabytes_in_profile_names_round_away_from_zero(total_gib: int, mib: int, number: int) -> None:
    assert profile.memory_gb_of_mib(instance_mib=mib, total_bytes=total_gib << 30) == number


@pytest.mark.parametrize(("mib", "number"), [(4864, 5), (20096, 20), (9728, 10), (0, 0)])
def test_profile_memory_is_in_whole_gib_if_the_total_is_unknown(mib: int, number: int) -> None:
    assert profile.memory_gb_of_mib(instance_mib=mib, total_bytes=0) == number


@settings(max_examples=100)
@given(total_gib=st.sampled_from([24, 40, 80]), mib=st.integers(1, 24 * 1024))
def test_profile_memory_is_the_smallest_eighth_that_holds_the_instance(total_gib: int, mib: int) -> None:
    number = profile.memory_gb_of_mib(instance_mib=mib, total_bytes=total_gib << 30)
    eighth = total_gib // 8
    assert number % eighth == 0
    assert (number - eighth) * 1024 < mib <= number * 1024
