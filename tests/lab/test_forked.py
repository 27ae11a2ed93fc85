"""Forked processes behave like executed ones, and end with the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests import forked, programs
from tests.lab.programs import forking

pytestmark = pytest.mark.slow

SLEEPS = programs.command(forking.sleeps)[1:]


def test_a_process_has_its_own_arguments_environment_and_exit_code(tmp_path: Path) -> None:
    words = programs.command(forking.reports_itself)[1:]
    with (tmp_path / "log").open("wb") as log:
        process = forked.start(forking.PACKAGE, [*words, "--flag"], environment={"name": "value"}, errors=log.fileno())
    assert isinstance(process, forked.Process)
    assert process.wait(30) == process.poll() == 3
    assert (tmp_path / "log").read_text() == f"['-c', '--flag'] {{'name': 'value'}} {programs.PATH}"


def test_a_signal_ends_a_process() -> None:
    process = forked.start(forking.PACKAGE, SLEEPS, environment={}, errors=2)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    process.kill()  # of a process that has ended


def test_a_process_with_a_variable_for_the_loader_is_executed() -> None:
    process = forked.start(forking.PACKAGE, ["-c", ""], environment={"LD_PRELOAD": ""}, errors=2)
    assert isinstance(process, subprocess.Popen)
    assert process.wait(30) == 0


def test_processes_end_with_the_one_that_started_them() -> None:
    command = programs.command(forking.starts_a_sleeper)
    with subprocess.Popen(command, cwd=programs.PATH, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        started = os.pidfd_open(int(parent.stdout.readline()))
        assert not select.select([started], [], [], 0)[0]
        parent.kill()
        assert select.select([started], [], [], 30)[0]
    os.close(started)
