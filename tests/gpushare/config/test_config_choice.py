"""The ConfigMap entry of a node: its label decides; defaults apply only to nodes without a label."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import errors
from gpushare.config import config_choice
from gpushare.config.config_choice import ActiveConfig, Decision

NAMES = st.sampled_from(["a", "b", "default", "..data"])


@pytest.mark.slow
@given(
    st.dictionaries(NAMES, st.sampled_from(["x", "y"])),
    st.one_of(st.none(), st.just(""), NAMES, st.just("z")),
    st.sampled_from(["", "a", "z"]),
    st.lists(st.sampled_from(["named", "single", "empty", "bogus"]), max_size=3),
    st.one_of(st.none(), st.builds(ActiveConfig, NAMES, st.sampled_from(["x", "y"]))),
)
def test_a_selected_entry_exists_and_a_problem_keeps_the_current_one(
    entries: dict[str, str], label: str | None, default: str, fallbacks: list[str], current: ActiveConfig | None
) -> None:
    decision = config_choice.decide(current, entries, label=label, default=default, fallbacks=fallbacks)
    if decision.problem:
        assert decision.in_force == current
        return
    assert decision.in_force is not None
    name = decision.in_force.name
    assert name == config_choice.EMPTY or (name in entries and not name.startswith(".."))
    assert not label or name == label
    assert decision.in_force.text == entries.get(name, "")


def test_an_edited_entry_is_applied() -> None:
    old, new = ActiveConfig("a", "x"), ActiveConfig("a", "y")
    assert config_choice.decide(old, {"a": "y"}, label="a") == Decision(new)
    assert config_choice.decide(new, {"a": "y"}, label="a") == Decision(new)


def test_an_unknown_name_is_rejected_with_the_existing_ones() -> None:
    with pytest.raises(errors.ConfigError) as caught:
        config_choice.select({"b", "a"}, label="z", default="a")
    assert str(caught.value) == (
        "specified config z does not exist: the ConfigMap has a, b; change the node's label, or add it with kubectl "
        "gpushare config set z -f FILE"
    )


CUSTOM = ActiveConfig("exclusive", "version: v1\nsharing: {}\n")


@pytest.mark.parametrize(
    ("current", "entries", "label", "expected"),
    [
        (None, {}, None, config_choice.BUILT_IN),
        (None, {}, "exclusive", config_choice.BUILT_IN_EXCLUSIVE),
        (None, {"mig": "x"}, "exclusive", config_choice.BUILT_IN_EXCLUSIVE),
        (ActiveConfig("mig", "x"), {"mig": "x"}, "exclusive", config_choice.BUILT_IN_EXCLUSIVE),
        (config_choice.BUILT_IN_EXCLUSIVE, {}, None, config_choice.BUILT_IN),
        (None, {"exclusive": CUSTOM.text}, "exclusive", None),  # the ConfigMap's entry takes precedence
        (None, {"mig": "x"}, None, None),  # if the ConfigMap has no entry for the node, its GPUs must not be shared
        (None, {}, "mig", None),
        (CUSTOM, {}, "exclusive", None),  # the entry disappeared
        (ActiveConfig("default", "x"), {}, None, None),  # the ConfigMap disappeared
    ],
)
def test_built_in_configurations_never_replace_an_entry_that_disappeared(
    current: ActiveConfig | None, entries: dict[str, str], label: str | None, expected: ActiveConfig | None
) -> None:
    assert config_choice.built_in(current, entries, label=label) == expected
