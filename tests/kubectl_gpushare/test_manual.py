"""docs/cli says what `--help` says. After a change: `make docs`."""

from __future__ import annotations

import pytest

from docs.cli import make as manual
from kubectl_gpushare import cli
from tests.kubectl_gpushare.conftest import ROOT

FOLDER = ROOT / "docs" / "cli"


@pytest.mark.parametrize("name", ["README.md", *(f"{verb}.md" for verb in cli.VERBS)])
def test_a_page_of_the_manual_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == manual.pages()[name]


def test_there_is_no_page_of_a_verb_that_is_gone() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == set(manual.pages())
