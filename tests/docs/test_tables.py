"""Table cells are short. Longer explanations are prose below the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import pages

MAX_WORDS = 40
_TARGET = re.compile(r"\]\([^)]*\)")  # the target of a link, which is not visible
_CELL_END = re.compile(r"(?<!\\)\|")


def long_cells(text: str) -> list[str]:
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in _CELL_END.split(row)]
    return [cell for cell in cells if len(_TARGET.sub("]", cell).split()) > MAX_WORDS]


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_table_cells_are_short(page: Path) -> None:
    assert long_cells(pages.prose(page)) == []


def test_a_long_cell_is_detected() -> None:
    assert len(long_cells(f"| short | {'word ' * 41}|\n")) == 1
    assert long_cells(f"| {'word ' * 20}| {'word ' * 30}|\n") == []
