"""Labels that are written to the Node, and labels that stay untouched."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from deviceplugin.report import node_writers
from gpushare import contract

KEYS = st.sampled_from(["nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.product", "other"])
LABELS = st.dictionaries(KEYS, st.sampled_from(["1", "2"]))


def applied(metadata: dict[str, Any], patch: dict[str, Any] | None) -> dict[str, Any]:
    """Apply a merge patch as the API server does."""
    changed = {key: dict(metadata.get(key, {})) for key in ("labels", "annotations")}
    for key, values in (patch or {"metadata": {}})["metadata"].items():
        for name, value in values.items():
            changed[key].pop(name, None)
            if value is not None:
                changed[key][name] = value
    return changed


@pytest.mark.slow
@hypothesis.given(LABELS, LABELS, LABELS)
def test_patch_sets_our_labels_and_keeps_others(others: Any, first: Any, second: Any) -> None:
    before: dict[str, Any] = {"labels": others}
    patched = applied(before, node_writers.patch(before, first))
    two = applied(patched, node_writers.patch(patched, second))
    expected = others | {key: value for key, value in second.items() if key not in others}
    assert two["labels"] == expected
    assert node_writers.patch(two, second) is None  # and the second patch is complete


def test_writes_nothing_if_no_label_is_wanted() -> None:
    assert node_writers.patch({"labels": {"a": "b"}}, {}) is None


def test_removing_the_last_label_removes_the_annotation() -> None:
    metadata = {"labels": {"nvidia.com/gpu.count": "4"}, "annotations": {contract.OWN_LABELS: "nvidia.com/gpu.count"}}
    assert node_writers.patch(metadata, {}) == {
        "metadata": {"labels": {"nvidia.com/gpu.count": None}, "annotations": {contract.OWN_LABELS: None}}
    }
