"""A replica's memory, and its longest stall, during an event."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from burst import webhooks

PROBE_SECONDS = 0.01


@dataclass(frozen=True)
class Phase:
    """Seconds until ready, peak and final bytes, and seconds of the longest stall.

    worked_seconds: CPU time of the main thread during that stall; queued_seconds: its wait for a CPU. The rest of the
    stall is the caller's own.
    """

    ready_seconds: float
    peak_bytes: int
    left_bytes: int
    stall_seconds: float
    worked_seconds: float
    queued_seconds: float


class Watched:
    """A context that probes the replica continuously; the slowest answer is its stall."""

    def __init__(self, replica: webhooks.Replica) -> None:
        self._replica = replica
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._longest = (0.0, 0.0, 0.0)  # seconds: total, worked, queued

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def phase(self, ready_seconds: float) -> Phase:
        """Return the phase, and reset the peak."""
        pid = self._replica.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        kib = {name: int(value) for name, value in re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", status)}
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        return Phase(ready_seconds, kib["VmHWM"] << 10, kib["VmRSS"] << 10, *self._longest)

    def _run(self) -> None:
        while not self._ended.wait(PROBE_SECONDS):
            worked, queued = self._main_thread()
            began = time.monotonic()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self._replica.probe_port}/healthz", timeout=60).close()
                seconds = time.monotonic() - began
                if seconds > self._longest[0]:
                    now_worked, now_queued = self._main_thread()
                    self._longest = (seconds, now_worked - worked, now_queued - queued)

    def _main_thread(self) -> tuple[float, float]:
        """Return seconds on a CPU and in its queue; see the kernel's Documentation/scheduler/sched-stats.rst."""
        pid = self._replica.process.pid
        worked, queued, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
        return int(worked) / 1e9, int(queued) / 1e9
