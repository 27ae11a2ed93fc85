"""Streamed documents equal the whole document letter by letter, with unprintable characters escaped."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import printable
from kubectl_gpushare.output import printing

TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("\x7f\x85\x9b\u202e\u2028\ufeff"), max_size=12)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
KEYS = st.text("abcdefgh", min_size=2, max_size=6)


@pytest.mark.slow
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3), st.lists(st.dictionaries(TEXTS, VALUES), max_size=4))
@settings(max_examples=60, deadline=None)
def test_streamed_parts_equal_the_whole_document(before: dict[str, Any], items: list[dict[str, Any]]) -> None:
    whole = {**before, "items": items, "after": {"total": len(items)}}

    def streamed() -> dict[str, Any]:
        return {**whole, "items": iter(items)}

    as_json, as_yaml = "".join(printing.json_parts(streamed())), "".join(printing.yaml_parts(streamed()))
    assert as_json == printable.escaped(json.dumps(whole, indent=4, ensure_ascii=False)) + "\n"
    assert json.loads(as_json) == yaml.safe_load(as_yaml) == whole
    assert printable.is_document(as_json)
    assert printable.is_document(as_yaml)


def test_lone_surrogate_is_escaped() -> None:
    assert "".join(printing.json_parts({"a": "\ud800"})) == '{\n    "a": "\\ud800"\n}\n'
    assert "".join(printing.yaml_parts({"a": "\ud800"})) == 'a: "\\uD800"\n'


def test_items_are_made_one_at_a_time() -> None:
    made: list[int] = []

    def items() -> Any:
        for number in range(3):
            made.append(number)
            yield {"number": number}

    for stream in (printing.json_parts, printing.yaml_parts):
        made.clear()
        parts = stream({"items": items()})
        while '"number": 0' not in (part := next(parts)) and "number: 0" not in part:
            pass
        assert made == [0]
