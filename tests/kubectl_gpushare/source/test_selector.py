from __future__ import annotations

import pytest

from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import selector

LABELS = {"pool": "a", "zone": "eu-1", "example.com/gpu": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("pool=a", True),
        ("pool==a", True),
        ("pool=b", False),
        ("pool!=b", True),
        ("nothing!=b", True),
        ("pool=a,zone=eu-2", False),
        ("pool in (a, b),zone", True),
        ("pool notin (a,b)", False),
        ("nothing notin (a)", True),
        ("example.com/gpu", True),
        ("example.com/gpu=", True),
        ("!nothing", True),
        ("!pool", False),
    ],
)
def test_labels_match_as_the_api_server_matches_them(text: str, matches: bool) -> None:
    assert selector.parse(text)(LABELS) is matches


@pytest.mark.parametrize("text", ["a b", "=a", "pool in a", "pool=a,", "pool>1"])
def test_a_bad_selector_is_named(text: str) -> None:
    with pytest.raises(plugin_errors.PluginError, match="is not a label selector"):
        selector.parse(text)
