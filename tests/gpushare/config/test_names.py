"""Resource names, patterns, and device references."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import errors
from gpushare.config import value_parsers


@given(st.text(st.sampled_from("ab*"), max_size=8), st.text(st.sampled_from("abc"), max_size=10))
def test_a_star_is_the_only_wildcard(pattern: str, text: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
    assert value_parsers.matches(pattern, text) == expected == fnmatch.fnmatchcase(text, pattern)


@pytest.mark.parametrize(("pattern", "text"), [("?", "a"), ("[ab]", "a"), (".", "a"), ("1g", "1g.10gb"), ("A", "a")])
def test_all_other_characters_match_literally(pattern: str, text: str) -> None:
    assert not value_parsers.matches(pattern, text)


def test_a_resource_name_has_at_most_63_characters() -> None:
    assert value_parsers.parse_resource_name("a" * 52) == "nvidia.com/" + "a" * 52
    with pytest.raises(errors.ConfigError, match="63 characters or less, not 64"):
        value_parsers.parse_resource_name("a" * 53)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a_b", "a..b", ".a", "A", "example.com/gpu", "a\n", "ä"])
def test_a_resource_name_invalid_in_kubernetes_is_rejected(name: str) -> None:
    with pytest.raises(errors.ConfigError, match="incorrect format"):
        value_parsers.parse_resource_name(name)


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", " 1", "1 ", "1:", ":1", "1:-1", "1:1:1", "0x1", "1_0", "٣", "1\n", "9" * 30, "GPU-", "gpu-0"],
)
def test_an_invalid_device_reference_is_rejected(text: str) -> None:
    assert value_parsers.reference_kind(text) is None


@given(st.uuids(), st.integers(0, 99), st.integers(0, 9))
def test_every_form_of_device_reference_is_accepted(uuid: object, gpu: int, part: int) -> None:
    assert value_parsers.reference_kind(str(gpu)) is value_parsers.ReferenceKind.GPU_INDEX
    assert value_parsers.reference_kind(f"{gpu}:{part}") is value_parsers.ReferenceKind.MIG_INDEX
    for form in (f"GPU-{uuid}", f"MIG-{uuid}", f"MIG-GPU-{uuid}/{gpu}/{part}"):
        assert value_parsers.reference_kind(form) is value_parsers.ReferenceKind.UUID
    assert value_parsers.is_gpu_uuid(f"GPU-{uuid}")
    assert not value_parsers.is_gpu_uuid(f"MIG-{uuid}")
