"""Views and plans are functions of the fetched objects: no file, no clock, no process, no cluster."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubectl_gpushare.conftest import ROOT

PACKAGE = ROOT / "kubectl_gpushare"
IMPURE = {"os", "sys", "time", "pathlib", "subprocess", "threading", "select", "signal", "random", "click"}
OURS = {
    "kubectl_gpushare.kubectl",
    "kubectl_gpushare.commands",
    "kubectl_gpushare.moving",
    "kubectl_gpushare.following",
    "kubectl_gpushare.cordoning",
}
SOURCES = {
    f"kubectl_gpushare.source.{name}"
    for name in ("live_cluster", "files", "chosen_source", "agents", "pod_files", "preconditions")
}


def imported(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports anywhere, but not those that they import."""
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


@pytest.mark.parametrize(
    "path",
    [
        *(PACKAGE / "views").rglob("*.py"),
        *(PACKAGE / "planning").rglob("*.py"),
        *(PACKAGE / "ui" / f"{name}.py" for name in ("page_model", "page_history")),
    ],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_a_view_or_a_plan_is_pure(path: Path) -> None:
    names = set(imported(path))
    assert not names & (IMPURE | OURS | SOURCES)
    assert not any(name.startswith(tuple(f"{module}." for module in IMPURE)) for name in names)


def test_only_four_modules_write_to_the_cluster() -> None:
    writers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if ".kubectl.patch(" in path.read_text() or ".kubectl.create(" in path.read_text()
    }
    assert writers == {"commands/config.py", "cordoning.py", "moving.py", "commands/resize.py"}
