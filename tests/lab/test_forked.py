"""Forked processes behave like executed ones, and end with the process that started them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked, programs

pytestmark = pytest.mark.slow

PACKAGE = "json"  # quickly imported
SAYS = "import os, sys; sys.stderr.write(f'{sys.argv} {dict(os.environ)} {os.getcwd()}'); sys.exit(3)"
STARTS = f"""
import os, time
from tests import forked
with forked.allowed():
    process = forked.start({PACKAGE!r}, ["-c", "import time; time.sleep(60)"], environment={{}}, errors=2)
    print(process.pid, flush=True)
    time.sleep(60)
"""


def test_a_process_has_its_own_arguments_environment_and_exit_code(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = forked.start(PACKAGE, ["-c", SAYS, "--flag"], environment={"a": "b"}, errors=log.fileno())
    assert isinstance(process, forked.Process)
    assert process.wait(30) == process.poll() == 3
    assert (tmp_path / "log").read_text() == f"['-c', '--flag'] {{'a': 'b'}} {programs.PATH}"


def test_a_signal_ends_a_process() -> None:
    process = forked.start(PACKAGE, ["-c", "import time; time.sleep(60)"], environment={}, errors=2)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    process.kill()
    assert process.wait(30) == -9
    process.kill()


def test_a_process_with_a_variable_for_the_loader_is_executed() -> None:
    process = forked.start(PACKAGE, ["-c", ""], environment={"LD_PRELOAD": ""}, errors=2)
    assert isinstance(process, subprocess.Popen)
    assert process.wait(30) == 0


def test_processes_end_with_the_one_that_started_them() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], cwd=programs.PATH, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        started = os.pidfd_open(int(parent.stdout.readline()))
        assert not select.select([started], [], [], 0)[0]
        parent.kill()
        assert select.select([started], [], [], 30)[0]
    os.close(started)
