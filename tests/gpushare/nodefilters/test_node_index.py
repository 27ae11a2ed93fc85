"""The index selects for all objects at once exactly what the selector matches one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.nodefilters import selectors
from gpushare.nodefilters.node_index import Postings, row_numbers

pytestmark = pytest.mark.slow

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["", "x", "y", "1", "07", "-3", "99"])
LABELS = st.dictionaries(KEYS, VALUES)
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"])
REQUIREMENTS = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    KEYS,
    OPERATORS,
    st.lists(VALUES | st.sampled_from([f"v{number}" for number in range(12)]), max_size=12),
)
# A row with its new labels; None removes it.
STEPS = st.lists(st.tuples(st.integers(0, 40), st.none() | LABELS), max_size=40)


@given(STEPS, st.lists(st.lists(REQUIREMENTS, max_size=3), max_size=4))
def test_law_index_selects_what_the_selector_matches(
    steps: list[tuple[int, dict[str, str] | None]], asked: list[list[dict[str, object]]]
) -> None:
    postings = Postings()
    there: dict[int, dict[str, str]] = {}
    chosen = [selectors.of_labels({"matchExpressions": requirements}) for requirements in asked]
    for row, labels in steps:
        for selector in chosen:  # so that an outdated cache would be noticed
            matching = {at for at, own in there.items() if selector.matches(own)}
            assert set(row_numbers(postings.matching(selector))) == matching
        if row in there:
            postings.drop(row, there.pop(row))
        if labels is not None:
            postings.put(row, labels)
            there[row] = labels
    assert set(row_numbers(postings.every_row)) == set(there)
    for key in ("a", "b", "c"):
        assert set(row_numbers(postings.having(key))) == {row for row, labels in there.items() if key in labels}
