"""Samples of a process's memory, descriptors, threads and tasks, and whether they are flat."""

from __future__ import annotations

import contextlib
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WARM_UP = 1 / 3  # part of the samples
WINDOWS = 8  # after that: the minimum of each counts, because work in flight at a busy moment is not a leak
KINDS = ("MiB", "descriptors", "threads", "tasks", "entries")
# How far that line may rise from start to end: a part of the median, or at least this.
MAX_PART = 0.05
MIN: Mapping[str, float] = {"MiB": 6.0, "descriptors": 6.0, "threads": 1.5, "tasks": 8.0, "entries": 8.0}


@dataclass
class Series:
    """Samples of one process: (seconds, value) by kind."""

    name: str
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, at: float, values: Mapping[str, float]) -> None:
        for kind, value in values.items():
            self.samples.setdefault(kind, []).append((at, value))

    def rows(self) -> list[Row]:
        return [
            Row.from_samples(self.name, kind, self.samples[kind])
            for kind in KINDS
            if len(self.samples.get(kind, ())) > 5
        ]


@dataclass(frozen=True)
class Row:
    """median, most: after the warm-up; least: of each window since then; grown: along the straight line through
    these.
    """

    process: str
    kind: str
    first: float
    median: float
    most: float
    least: tuple[float, ...]
    grown: float

    @classmethod
    def from_samples(cls, process: str, kind: str, samples: Sequence[tuple[float, float]]) -> Row:
        warm = samples[int(len(samples) * WARM_UP) :]
        values = [value for _, value in warm]
        size = max(1, len(warm) // WINDOWS)
        least = [min(values[begin : begin + size]) for begin in range(0, size * (len(warm) // size), size)]
        slope = statistics.linear_regression(range(len(least)), least).slope
        summary = statistics.median(values), max(values), tuple(least)
        return cls(process, kind, samples[0][1], *summary, slope * (len(least) - 1))

    @property
    def is_flat(self) -> bool:
        return self.grown <= max(MIN[self.kind], MAX_PART * self.median)


def of_process(pid: int, tasks: Path | None = None) -> dict[str, float]:
    """Return a process's current values; empty if it has exited."""
    values: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text()
        kib = dict(re.findall(r"(VmRSS|Threads):\s+(\d+)", status))
        values = {"MiB": int(kib["VmRSS"]) / 1024, "threads": float(kib["Threads"])}
        values["descriptors"] = float(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        if tasks is not None and tasks.exists():
            values["tasks"] = float(tasks.read_text())
    return values
