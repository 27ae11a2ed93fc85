"""The tests that pages name exist, and every claim of the threat model has a test or an argument."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.docs import pages

THREATS = pages.ROOT / "docs" / "security.md"
_TEST = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")
_IN_FILE = re.compile(r"`(\w+)` in `([\w/]+\.py)`")


@functools.cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of a file's functions and methods; none if the file does not exist."""
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def wrong(text: str) -> list[str]:
    """Return the tests and functions that a text names and that do not exist."""
    tests = [
        match.group()
        for match in _TEST.finditer(text)
        if match.group(2)
        not in {None, *(function for function in functions(pages.ROOT / match.group(1)) if function[:5] == "test_")}
        or not (pages.ROOT / match.group(1)).is_file()
    ]
    others = [match.group() for match in _IN_FILE.finditer(text) if match[1] not in functions(pages.ROOT / match[2])]
    return tests + others


def claims() -> list[list[str]]:
    """Return the rows of the threat model's tables that have a column `held`, as cells."""
    tables = re.findall(r"^\|[^|\n]*\| held \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", THREATS.read_text(), re.MULTILINE)
    rows = [line.strip("|").split(" | ") for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_test_named_on_a_page_exists(page: Path) -> None:
    assert wrong(page.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "`tests/docs/test_named_tests.py::test_that_does_not_exist`",
        "`tests/docs/test_named_tests.py::wrong`",
        "`tests/docs/test_nowhere.py`",
        "`missing` in `gpushare/pod.py`",
    ],
)
def test_a_missing_test_is_detected(text: str) -> None:
    assert len(wrong(text)) == 1


def test_every_claim_of_the_threat_model_has_a_test_or_an_argument() -> None:
    rows = claims()
    assert len(rows) > 100
    assert [row for row in rows if len(row) != 4 or row[1] not in {"yes", "in part", "no"}] == []
    assert [row[0] for row in rows if "::test_" not in row[3] and not row[3].startswith("*argument*: ")] == []
    assert [row[0] for row in rows if row[1] == "yes" and "::test_" not in row[3]] == []
