"""A patch turns one value into the other, as another implementation of JSON Patch applies it."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.pods import mutation

pytestmark = pytest.mark.slow

keys = st.sampled_from(["a", "b", "a/b", "m~n", "~1", ""])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "gpushare.io/request"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(keys, values, max_size=4)


@given(before=objects, after=objects)
def test_applied_patch_gives_the_other_value(before: dict[str, Any], after: dict[str, Any]) -> None:
    operations = mutation.patch(before, after)
    assert written(jsonpatch.apply_patch(copy.deepcopy(before), operations)) == written(after)


@given(value=values)
def test_equal_values_have_an_empty_patch(value: Any) -> None:
    assert mutation.patch(value, copy.deepcopy(value)) == []


def test_true_and_1_are_distinguished() -> None:
    assert mutation.patch({"hostNetwork": True}, {"hostNetwork": 1}) == [
        {"op": "replace", "path": "/hostNetwork", "value": 1}
    ]


def written(value: Any) -> str:
    """Return an order of JSON texts, which distinguishes True from 1."""
    return repr(ordered(value))


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value)}
    return [ordered(entry) for entry in value] if isinstance(value, list) else value
