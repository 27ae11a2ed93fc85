"""Fuzzes each target for some seconds. Every run tries new inputs, except in continuous integration. CONTRIBUTING.md
says what to do about a find.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import native, running, table

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("GPUSHARE_FUZZ_SECONDS", "1"))
# In continuous integration inputs are the same on every run, as in hypothesis: an unrelated find must not block a
# change.
SAME = 300 if os.environ.get("CI") else 0


def _engine(name: str) -> None:
    if table.of(name).native:
        if why := native.missing():
            pytest.skip(why)
    elif importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris, the fuzzer for Python, is there for Linux on x86-64 alone")


@pytest.fixture(scope="module")
def engine() -> Iterator[running.Engine]:
    with running.scratch() as environment:
        made = running.Engine(environment)
        yield made
        made.close()


@pytest.mark.parametrize("name", sorted(table.TARGETS))
def test_new_inputs_break_no_law(name: str, engine: running.Engine) -> None:
    _engine(name)
    done = running.run(name, 30 if SAME else SECONDS, whole=False, same=SAME, engine=engine)
    assert done.executions > 0, done.said
    if done.find is not None:
        pytest.fail(f"{running.how_to_keep(name, done.find)}\n\n{running.tail(done.said)}", pytrace=False)


@pytest.mark.parametrize("name", sorted(table.PLANTED))
def test_fuzzing_finds_and_reports_the_planted_fault(
    name: str, engine: running.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _engine(name)
    monkeypatch.setattr(running, "FINDS", tmp_path)
    monkeypatch.setenv("GPUSHARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "CASES", tmp_path / "cases")
    (tmp_path / "cases" / name).mkdir(parents=True)
    (tmp_path / "cases" / name / "seed").write_bytes(b"?")
    done = running.run(name, 20, whole=False, engine=engine)
    assert done.find is not None, done.said
    assert done.find.read_bytes()[:2] == b"!!"
    said = running.how_to_keep(name, done.find)
    assert "base64 -d" in said
    assert list(running.cache(name).iterdir()), "nothing was learned for the next run"
