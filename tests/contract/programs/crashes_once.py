"""Test file of a small project: its worker crashes in the first run."""

import os
import pathlib
import signal


def test_crashes_once() -> None:
    ran_before = pathlib.Path("crashed-before")
    if not ran_before.exists():
        ran_before.touch()
        os.kill(os.getpid(), signal.SIGKILL)
