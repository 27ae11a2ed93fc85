"""Programs that are forked, and one that forks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests import forked, programs

PACKAGE = "json"  # quickly imported


def reports_itself() -> None:
    sys.stderr.write(f"{sys.argv} {dict(os.environ)} {Path.cwd()}")
    sys.exit(3)


def sleeps() -> None:
    time.sleep(60)


def starts_a_sleeper() -> None:
    """Print the pid of a forked process, and sleep."""
    with forked.allowed():
        process = forked.start(PACKAGE, programs.command(sleeps)[1:], environment={}, errors=2)
        print(process.pid, flush=True)
        time.sleep(60)
