"""NVIDIA's behaviour, case by case; and that the runner detects failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance import runner
from tests.conformance.runner import Case, Facets, Outcome, OutsideError

REPOSITORY = Path(__file__).resolve().parents[2]
ADAPTERS, OUTSIDE = runner.adapters()
CASES = list(runner.read(runner.CASES))


@pytest.mark.parametrize("operation", list(dict.fromkeys(case.operation for case in CASES)))
def test_every_case_passes_or_is_out_of_scope(operation: str) -> None:
    outcomes = [runner.run(case, ADAPTERS, OUTSIDE) for case in CASES if case.operation == operation]
    assert not [f"{outcome.case.name}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    assert outcomes


def ran(expect: Any, result: Any) -> Outcome:
    def adapter(_: Case) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    case = Case({"id": "suite"}, "operation", "case", None, expect)
    return runner.run(case, {"operation": adapter}, {})


@pytest.mark.parametrize(
    ("expect", "result"),
    [
        ({"ok": False}, ValueError("no")),
        ({"ok": True}, None),
        ({"ok": True, "value": [1, {"a": None}]}, (1, {"a": None})),
        ({"ok": True, "size": 2}, Facets(size=2, other=3)),
        ({"size": 2}, Facets(size=2, other=3)),
        ([1, 2], {2, 1}),
        ({}, {}),
        ("a", "a"),
    ],
)
def test_an_expected_result_passes(expect: Any, result: Any) -> None:
    assert ran(expect, result).problem == ""


@pytest.mark.parametrize(
    ("expect", "result"),
    [
        ({"ok": False}, "fine"),
        ({"ok": False}, TypeError("a mistake is no refusal")),
        ({"ok": True}, ValueError("no")),
        ({"ok": True, "value": 1}, 2),
        ({"ok": True, "value": 1}, True),
        ({"ok": True, "size": 2}, Facets(other=3)),
        ({"size": 2}, Facets(size=3)),
        ({"size": 2}, {"size": 2, "other": 3}),
        ({}, {"a": 1}),
        ([1, 2], [2, 1]),
        ([1, 1], {1}),
        ("a", Facets(a=1)),
        (False, 0),
        (1, ValueError("no")),
    ],
)
def test_an_unexpected_result_fails(expect: Any, result: Any) -> None:
    assert ran(expect, result).problem


def test_an_out_of_scope_case_is_skipped() -> None:
    outcome = ran(1, OutsideError("not ours"))
    assert (outcome.problem, outcome.skipped) == ("", "not ours")
    assert "skipped operation: not ours" in list(runner.report([outcome]))
    assert list(runner.report([outcome, ran(1, 2), ran(1, 1)]))[-1] == "1 passed, 1 failed, 1 skipped"


def test_an_unknown_operation_fails() -> None:
    assert runner.run(Case({"id": "s"}, "new", "c", None, 1), {}, {}).problem == "no adapter for the operation new"


def test_the_recommended_result_overrides_upstreams(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "input": None, "expect": 1, "recommended": 2})
    assert [case.expect for case in runner.read(path)] == [2]


@pytest.mark.slow
@pytest.mark.parametrize(("expect", "code"), [("nvidia.com/gpu", 0), ("gpu", 1)])
def test_the_program_prints_failures_and_totals(tmp_path: Path, expect: str, code: int) -> None:
    path = write(tmp_path, {"id": "a", "input": "gpu", "expect": {"ok": True, "value": expect}})
    command = [sys.executable, "-m", "tests.conformance", str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{1 - code} passed, {code} failed, 0 skipped"
    assert lines[-2] == f"parse_resource_name: {1 - code} passed, {code} failed, 0 skipped"
    assert len([line for line in lines if line.startswith("FAILED parse_resource_name suite/a")]) == code


def write(folder: Path, case: Mapping[str, Any]) -> Path:
    path = folder / "cases.yaml"
    suite = {"id": "suite", "operation": "parse_resource_name", "cases": [case]}
    path.write_text(yaml.safe_dump({"suites": [suite]}), encoding="utf-8")
    return path
