"""A pytest plugin that decides whether continuous integration may rerun failed files, and records them.

With --retryable=FILE, a run whose failures may be flaky ends with one line per failed test in FILE: test file, test,
first error. FILE stays empty if a rerun of a few files cannot help: after a collection error (no test runs then), a
crashed worker, an interrupted run, or too many failed files. This includes errors in teardown, because a session's
fixture reports there what any earlier test did.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

MAX_FILES: Final = 5  # more failed files at once are a fault of the change or of the machine
_MAX_ERROR: Final = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--retryable", type=Path, metavar="FILE", help="write failures that may be flaky to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--retryable")
    if path is not None and not hasattr(config, "workerinput"):  # workers of xdist report to the controller
        config.pluginmanager.register(RetryableFailures(path))


class RetryableFailures:
    """The failures of a run; `final` once one of them must not be retried."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._errors: dict[str, str] = {}
        self._final = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._final |= report.when not in ("setup", "call")  # xdist reports a crashed worker as "???"
            self._errors.setdefault(report.nodeid, first_error(report))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        files = {test.partition("::")[0] for test in self._errors}
        if exitstatus == pytest.ExitCode.TESTS_FAILED and not self._final and len(files) <= MAX_FILES:
            lines = (f"{test.partition('::')[0]}\t{test}\t{error}\n" for test, error in self._errors.items())
            self._path.write_text("".join(lines))


def first_error(report: pytest.TestReport) -> str:
    """Return the first line of the test's error, for a cell of a Markdown table."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash is not None else report.longreprtext).split("\n")
    line = next((line.strip() for line in lines if line.strip()), "no message")
    return line.replace("\t", " ").replace("|", "¦")[:_MAX_ERROR]
