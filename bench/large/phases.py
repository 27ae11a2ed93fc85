"""What a replica takes of memory, and for how long it answers nobody, while something happens to it."""

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
    """Seconds until it was ready, bytes that it had at most and at the end, seconds of the longest stall.

    worked_seconds: what its main thread had of a processor during that stall; queued_seconds: for how long it waited
    for one. The rest of the stall is the caller's own.
    """

    ready_seconds: float
    peak_bytes: int
    left_bytes: int
    stall_seconds: float
    worked_seconds: float
    queued_seconds: float


class Watched:
    """While it is entered, the replica is asked again and again; the longest that an answer took is its stall."""

    def __init__(self, replica: webhooks.Replica) -> None:
        self._replica = replica
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._longest = (0.0, 0.0, 0.0)  # seconds: in all, worked, queued

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def phase(self, ready_seconds: float) -> Phase:
        """What it took; the peak is counted again from here on."""
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
        """Seconds on a processor, and in the queue for one: Documentation/scheduler/sched-stats.rst of the kernel."""
        pid = self._replica.process.pid
        worked, queued, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
        return int(worked) / 1e9, int(queued) / 1e9
