"""Continuous integration reruns failed files once, alone: `.ci/run` itself on small projects, and tests/flaky.md."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import retryable

REPOSITORY = Path(__file__).resolve().parents[2]
FLAKY = REPOSITORY / "tests" / "flaky.md"
PROGRAMS = Path(__file__).parent / "programs"
CHECK = "check:\n\t@test ! -e check-fails\n"
CLOSING = re.compile(r"(?:=+ )?\d+ (?:passed|failed|error).* in [0-9.]+s")


def project(folder: Path, *names: str) -> Path:
    """Create a project with these test files, our suite's layout, and the real script and plugin."""
    (folder / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", folder / ".ci" / "run")
    (folder / "tests").mkdir()
    shutil.copy(retryable.__file__, folder / "tests" / "conftest.py")
    for number, name in enumerate(names):
        shutil.copy(PROGRAMS / f"{name}.py", folder / "tests" / f"test_{number}_{name}.py")
    (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
    suite = re.search(
        r"^\t(\$\(BIN\)/pytest .*\$\(TEST_OPTIONS\))$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE
    )
    assert suite is not None
    (folder / "Makefile").write_text(f"BIN := .venv/bin\nWORKERS := 2\ntest: check\n\t{suite[1]}\n{CHECK}")
    (folder / "pytest.ini").write_text(
        "[pytest]\ntestpaths = tests\naddopts = -ra --import-mode=importlib -p xdist.plugin\n"
    )
    return folder


def run(folder: Path) -> tuple[int, list[str]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "MAKE"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing hypothesis and aiohttp takes most of a short run
    ended = subprocess.run(
        ["bash", ".ci/run"],
        cwd=folder,
        env=environment | {"CI": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert CLOSING.fullmatch(lines[-1]), ended.stdout
    return ended.returncode, lines


@pytest.mark.slow
def test_a_file_that_passes_on_rerun_is_reported_as_flaky(tmp_path: Path) -> None:
    status, lines = run(project(tmp_path, "passes", "fails_once"))
    assert status == 0
    assert "Once more, alone: tests/test_1_fails_once.py" in lines
    today = datetime.datetime.now(datetime.UTC).date()
    row = "tests/test_1_fails_once.py::test_fails_once | AssertionError: the machine ¦ was busy | |"
    assert lines[-2] in {f"| {day} | {row}" for day in (today, today - datetime.timedelta(days=1))}
    assert any(line.startswith("The suite: 1 failed, 1 passed") for line in lines)
    assert lines[-1].startswith("1 passed")


@pytest.mark.slow
def test_a_file_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    status, lines = run(project(tmp_path, "fails", "fails_once", "passes"))
    assert status != 0
    assert "Once more, alone: tests/test_0_fails.py tests/test_1_fails_once.py" in lines
    assert lines[-1].startswith("2 failed, 1 passed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("passes",),
        ("breaks", "passes"),
        ("crashes_once", "passes"),
        ("ends_badly_once", "passes"),
        ("fails",) * (retryable.MAX_FILES + 1),
    ],
    ids=lambda names: names[0],
)
def test_other_failures_are_not_rerun(tmp_path: Path, names: tuple[str, ...]) -> None:
    status, lines = run(project(tmp_path, *names))
    assert (status == 0) is (names == ("passes",))
    assert not any(line.startswith("Once more") for line in lines)


@pytest.mark.slow
def test_a_failed_check_is_not_rerun(tmp_path: Path) -> None:
    project(tmp_path, "fails_once")
    (tmp_path / "check-fails").touch()
    ended = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert not (tmp_path / "ran-before").exists()


def rows() -> list[list[str]]:
    lines = FLAKY.read_text().splitlines()
    table = lines.index("| date | test | first error | cause |")
    assert lines[table + 1] == "|---|---|---|---|"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[table + 2 :]]


def test_flaky_tests_are_listed_with_date_test_error_and_cause() -> None:
    for row in rows():
        date, test, error, cause = row
        datetime.date.fromisoformat(date)
        assert (REPOSITORY / test.partition("::")[0]).is_file(), row
        assert all((test, error, cause)), f"say what causes it, or what is known so far: {row}"
