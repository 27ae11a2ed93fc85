"""For a process of a test, by PYTHONPATH: its wall clock is wrong by as many seconds as a file says now.

As when a machine's clock is set while it runs. The monotonic clock goes on as it did.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_FILE = Path(os.environ["GPUSHARE_TEST_CLOCK"])
_time = time.time


def _shifted() -> float:
    return _time() + float(_FILE.read_text() or 0)


time.time = _shifted
