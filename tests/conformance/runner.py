"""Runs a file of cases (suites of inputs and expected results) against the product's functions.

An adapter file, `operations/<area>.py`, has a table `OPERATIONS: dict[str, Callable[[Case], Any]]`: the name of an
operation in the cases file → a function that turns `case.input` into arguments, calls the product and returns the
result. An adapter only translates; it has no other logic. All files in the folder are loaded. An adapter file may also
have `OUTSIDE: dict[str, str]`: operations out of scope → the reason. For a single case out of scope, an adapter raises
`OutsideError` with the reason.

The comparison, where `expect` is the case's `recommended` if it has one:

* `expect` has `ok: false`: the adapter must raise `GpushareError` or another `ValueError`. Error texts are advisory.
* `expect` has `ok: true` and `value`: the adapter's result must equal `value`.
* `expect` has `ok: true` and other keys: like the next two rules, without `ok`; without other keys, not raising suffices.
* the adapter returns `Facets({...})`: each key of `expect` must exist and be equal; other keys are ignored.
* the adapter returns anything else: it must equal `expect`.

Equality: a set equals a list with the same elements in any order; a tuple equals a list; everything else is compared by
`==`, recursively, and true is not 1. `repeat: N` runs a case N times.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpushare.object_parsers import read_yaml

OPERATIONS_FOLDER = Path(__file__).parent / "operations"
CASES = Path(__file__).parent / "cases.yaml"


@dataclasses.dataclass(frozen=True)
class Case:
    """One case; `suite` has the other fields of its suite (`topologies`, `weights`, `note`, …)."""

    suite: Mapping[str, Any]
    operation: str
    id: str
    input: Any
    expect: Any
    repeat: int = 1

    @property
    def name(self) -> str:
        return f"{self.suite['id']}/{self.id}"


class OutsideError(Exception):
    """Raised by an adapter, with the reason, for a case that is out of scope although its operation is not."""


class Facets(dict[str, Any]):
    """Several named results; a case may check some of them."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a case: an empty problem means passed; `skipped` has the reason."""

    case: Case
    problem: str = ""
    skipped: str = ""


Adapter = Callable[[Case], Any]


def adapters() -> tuple[dict[str, Adapter], dict[str, str]]:
    """Return every adapter by operation, and the reasons of the operations out of scope."""
    operations: dict[str, Adapter] = {}
    outside: dict[str, str] = {}
    for path in sorted(OPERATIONS_FOLDER.glob("*.py")):
        module = importlib.import_module(f"tests.conformance.operations.{path.stem}")
        tables = [getattr(module, "OPERATIONS", {}), getattr(module, "OUTSIDE", {})]
        for name in [name for table in tables for name in table]:
            if name in operations or name in outside:
                raise ValueError(f"{path.stem}: the operation {name} has an adapter already")
        operations |= tables[0]
        outside |= tables[1]
    return operations, outside


def read(path: Path) -> Iterator[Case]:
    """Return the cases in a file."""
    (document,) = read_yaml(path.read_text(encoding="utf-8"))
    for suite in document["suites"]:
        shared = {key: value for key, value in suite.items() if key != "cases"}
        # Some suites refer to another suite's data.
        for other in document["suites"]:
            for key in ("topologies", "weights"):
                if key in other:
                    shared.setdefault(key, other[key])
        for case in suite["cases"]:
            yield Case(
                suite=shared,
                operation=suite["operation"],
                id=str(case["id"]),
                input=case.get("input"),
                expect=case.get("recommended", case["expect"]),
                repeat=int(case.get("repeat", 1)),
            )


def run(case: Case, operations: Mapping[str, Adapter], outside: Mapping[str, str]) -> Outcome:
    """Run one case."""
    if case.operation in outside:
        return Outcome(case, skipped=outside[case.operation])
    if case.operation not in operations:
        return Outcome(case, problem=f"no adapter for the operation {case.operation}")
    for _ in range(case.repeat):
        try:
            problem = _once(case, operations[case.operation])
        except OutsideError as outside_case:
            return Outcome(case, skipped=str(outside_case))
        if problem:
            return Outcome(case, problem=problem)
    return Outcome(case)


def _once(case: Case, adapter: Adapter) -> str:
    wanted = case.expect
    may_fail = isinstance(wanted, Mapping) and "ok" in wanted
    try:
        result = adapter(case)
    except ValueError as error:
        if may_fail and not wanted["ok"]:
            return ""
        return f"expected {wanted!r}, got the error {str(error)!r}"
    except OutsideError:
        raise
    except Exception as error:  # any exception in an adapter fails its case, not the run
        return f"expected {wanted!r}, died of {type(error).__name__}: {error}"
    if not may_fail:
        return _compared(wanted, result)
    if not wanted["ok"]:
        return f"expected an error ({wanted.get('error_contains', 'any')!r}), got {result!r}"
    if "value" in wanted:
        return _compared(wanted["value"], result)
    rest = {key: value for key, value in wanted.items() if key != "ok"}
    return _compared(rest, result) if rest else ""


def _compared(wanted: Any, result: Any) -> str:
    if isinstance(result, Facets):
        if not isinstance(wanted, Mapping):
            return f"expected {wanted!r}, got {dict(result)!r}"
        missing = [key for key in wanted if key not in result]
        if missing:
            return f"expected {wanted!r}, nothing is said of {', '.join(missing)}"
        result = {key: result[key] for key in wanted}
    return "" if equal(wanted, result) else f"expected {wanted!r}, got {result!r}"


def equal(wanted: Any, result: Any) -> bool:
    """Whether a result is what a case expects."""
    if isinstance(wanted, Mapping) and isinstance(result, Mapping):
        return wanted.keys() == result.keys() and all(equal(wanted[key], result[key]) for key in wanted)
    if isinstance(result, (set, frozenset)):
        return isinstance(wanted, (list, tuple)) and len(wanted) == len(result) and set(wanted) == result
    if isinstance(wanted, (list, tuple)) and isinstance(result, (list, tuple)):
        return len(wanted) == len(result) and all(
            equal(value, other) for value, other in zip(wanted, result, strict=True)
        )
    if isinstance(wanted, bool) or isinstance(result, bool):
        return wanted is result
    return bool(wanted == result)


def report(outcomes: list[Outcome]) -> Iterator[str]:
    """Format a line per failed case and per operation, the reasons for skipped cases, and the totals."""
    for outcome in outcomes:
        if outcome.problem:
            yield f"FAILED {outcome.case.operation} {outcome.case.name}: {outcome.problem}"
    reasons: dict[str, str] = {}
    for operation in dict.fromkeys(outcome.case.operation for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.case.operation == operation]
        yield f"{operation}: {_counts(own)}"
        reasons |= {
            operation if len({run.skipped for run in own}) == 1 else f"{operation} {outcome.case.name}": outcome.skipped
            for outcome in own
            if outcome.skipped
        }
    for what, reason in reasons.items():
        yield f"skipped {what}: {reason}"
    yield _counts(outcomes)


def _counts(outcomes: list[Outcome]) -> str:
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    skipped = sum(bool(outcome.skipped) for outcome in outcomes)
    return f"{len(outcomes) - failed - skipped} passed, {failed} failed, {skipped} skipped"
