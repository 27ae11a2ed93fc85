"""docs/cli equals the output of `--help`. After a change: `make docs`."""

from __future__ import annotations

import pytest

from docs.cli import make as manual
from kubectl_gpushare import cli
from tests.kubectl_gpushare.conftest import ROOT

FOLDER = ROOT / "docs" / "cli"


@pytest.mark.parametrize("name", ["README.md", *(f"{verb}.md" for verb in cli.VERBS)])
def test_manual_page_equals_the_help(name: str) -> None:
    assert (FOLDER / name).read_text() == manual.pages()[name]


def test_manual_has_no_page_of_a_removed_verb() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == set(manual.pages())
