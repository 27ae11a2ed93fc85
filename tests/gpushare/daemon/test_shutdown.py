"""The last moments and exit codes of daemons, with real processes and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gpushare.daemon import lifecycle
from tests.gpushare.daemon.programs import daemons
from tests.programs import PATH, command

Main = Callable[[lifecycle.Daemon], Awaitable[None]]


def run(
    main: Main, *signals: signal.Signals, grace_seconds: float = 20.0
) -> tuple[int, list[str], list[dict[str, Any]]]:
    """Run the daemon in a process and send a signal each time it prints `ready`; return exit code, output lines and
    log.
    """
    with subprocess.Popen(
        command(daemons.runs, main.__name__, grace_seconds),
        env={**os.environ, "PYTHONPATH": PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = []
        for number in signals:
            for line in process.stdout:
                said.append(line.strip())
                if said[-1] == "ready":
                    break
            process.send_signal(number)
        try:
            rest, log = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, said + rest.split("\n")[:-1], [json.loads(line) for line in log.splitlines()]


@pytest.mark.parametrize("number", lifecycle.SIGNALS)
def test_a_signal_drains_first_and_then_stops_background_tasks(number: signal.Signals) -> None:
    code, said, log = run(
        daemons.drains,
        number,
    )
    assert (code, said) == (0, ["ready", "drained", "cleaned up"])
    assert [(line["msg"], line["reason"]) for line in log] == [("Shutting down", number.name)]


def test_a_failed_background_task_ends_the_process_with_its_error() -> None:
    code, said, log = run(
        daemons.has_a_task_that_fails,
    )
    assert (code, said) == (1, ["drained"])
    assert (log[0]["msg"], log[0]["err"]) == ("The background task health failed", "LookupError: no such GPU")


@pytest.mark.parametrize("main", [daemons.has_a_task_that_returns, daemons.has_a_task_that_is_cancelled])
def test_a_background_task_that_returns_ends_the_process(main: Main) -> None:
    code, _, log = run(
        main,
    )
    assert code == 1
    assert log[0]["msg"] == "The background task informer ended unexpectedly"


def test_background_tasks_clean_up_when_main_fails() -> None:
    code, said, log = run(
        daemons.fails,
    )
    assert (code, said) == (1, ["cleaned up"])
    assert (log[0]["msg"], log[0]["err"]) == ("The daemon failed", "OSError: the port is taken")


def test_the_process_succeeds_when_main_returns() -> None:
    assert run(daemons.returns) == (0, ["done"], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "grace_seconds"),
    [((signal.SIGTERM, signal.SIGTERM), 60.0), ((signal.SIGTERM,), 0.2)],
    ids=["a second signal", "no time left"],
)
def test_a_drain_that_takes_too_long_is_cancelled(signals: tuple[signal.Signals, ...], grace_seconds: float) -> None:
    code, said, log = run(
        daemons.drains_for_ever,
        *signals,
        grace_seconds=grace_seconds,
    )
    assert (code, said) == (1, ["ready", "ready", "cleaned up"])
    assert log[-1]["msg"] == "Cancelled the remaining work: it did not finish in time"
