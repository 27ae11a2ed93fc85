"""Admissions go on, twenty a second, while the webhook is restarted and killed; `bench/outages.py` does that and more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import lab_layout

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1440)]  # a busy machine takes its time
BENCH = Path(__file__).resolve().parents[2] / "bench" / "outages.py"
SCENARIOS = ("rolling restart", "kill -9 of a replica")
TOO_LATE = "context deadline exceeded"
# What the API server says of a review that the killed replica had in hand, and of a new connection to it before its
# Service has forgotten it, be it while its container starts again, and of one that waits too long for the other, which
# has them all to itself meanwhile. Nobody sends these a second time.
OF_THE_KILLED = (
    *("EOF", "connection reset by peer", "broken pipe", "closed network connection", "connection refused"),
    *("remote error: tls", "gpushare is starting"),
    TOO_LATE,
)
# Half of what is sent in ten seconds: longer it takes no busy machine to have the Service forget the killed one, to which
# every other review goes until then. Mostly it is none or one.
MAX_LOST = 100


def measured(installed: lab_layout.Layout, *scenarios: str) -> dict[str, Any]:
    """What was counted, by scenario."""
    command = [sys.executable, str(BENCH), f"--lab={installed.directory}", f"--only={','.join(scenarios)}", "--kills=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=700, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["scenario"] for row in rows] == [*scenarios], done.stdout + done.stderr
    return {row["scenario"]: row for row in rows}


@pytest.fixture(scope="module")
def counted(installed: lab_layout.Layout) -> dict[str, Any]:
    """Both scenarios, one after the other."""
    return measured(installed, *SCENARIOS)


def test_a_rolling_restart_fails_no_admission(counted: dict[str, Any], installed: lab_layout.Layout) -> None:
    row = counted["rolling restart"]
    if row["reasons"] and all(TOO_LATE in why for why in row["reasons"]):
        # On a busy machine a review may wait for longer than the API server does: not each time.
        row = measured(installed, "rolling restart")["rolling restart"]
    assert row["admissions"] > 100
    assert row["reasons"] == {}, row["notes"]


def test_a_killed_replica_takes_with_it_only_what_was_sent_to_it(counted: dict[str, Any]) -> None:
    row = counted["kill -9 of a replica"]
    assert row["admissions"] > 100
    other = {why: count for why, count in row["reasons"].items() if not any(words in why for words in OF_THE_KILLED)}
    assert other == {}, row["notes"]
    assert row["failed"] <= MAX_LOST


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_version_of_the_ledger_is_over_committed(counted: dict[str, Any], scenario: str) -> None:
    assert counted[scenario]["versions"] > 50
    assert counted[scenario]["over-committed"] == 0
