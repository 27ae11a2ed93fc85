"""The results: a page for people and a file of figures, both written after each case so that nothing is lost."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from deviceplugin.host import records

RESULTS = Path(__file__).resolve().parents[1] / "results"
SIMULATED = "**Simulated GPUs: the figures below show that the bench works, and nothing about a GPU.**"


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows may still grow: a page shows the current ones. The first column is text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        rows = list(self.rows)  # a case in another thread may add one
        if not rows:
            return f"\n{self.title}: nothing measured"
        widths = [max(len(row[column]) for row in (self.head, *rows)) for column in range(len(self.head))]
        lines = [f"\n### {self.title}\n"]
        for row in (self.head, ["-" * width for width in widths], *rows):
            cells = [cell.ljust(width) for cell, width in zip(row[:1], widths, strict=False)]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


@dataclasses.dataclass
class Report:
    """Figures and tables, in order of arrival.

    A figure has a name, value and unit, the name of its reference (`against`, with the value `goal`), and the single
    rounds whose median it is. alone: the native rate of workloads, in percent, once measured. part: the name of the
    run among those of a day, for file names.
    """

    machine: Mapping[str, str]
    date: datetime.date
    part: str = ""
    figures: list[dict[str, object]] = dataclasses.field(default_factory=list)
    text: list[str | Table] = dataclasses.field(default_factory=list)
    alone: dict[str, float] = dataclasses.field(default_factory=dict)
    failed: list[str] = dataclasses.field(default_factory=list)
    attached: dict[str, str] = dataclasses.field(default_factory=dict)  # more files, by suffix

    def say(self, line: str = "") -> None:
        """Add a line of text."""
        self.text.append(line)

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table. `rows` may grow afterwards: a case that is interrupted keeps the rows that it has."""
        self.text.append(Table(title, head, rows))

    def add(
        self, name: str, rounds: float | Sequence[float], unit: str, *, against: str = "", goal: float | None = None
    ) -> float:
        """Add a figure: one value, or rounds, whose median counts. Return the value."""
        values = [rounds] if isinstance(rounds, (int, float)) else list(rounds)
        value = statistics.median(values)
        figure: dict[str, object] = {"figure": f"gpu.{name}", "value": round(value, 3), "unit": unit}
        if against:
            figure |= {"against": against, "ratio": round(value / goal, 4) if goal else None}
        if len(values) > 1:
            figure["rounds"] = [round(measured, 3) for measured in values]
        self.figures.append(figure)
        return value

    def fail(self, name: str, error: object) -> None:
        """Record that a case, or one row of it, failed. The run continues and ends with exit code 1."""
        why = " ".join(f"{type(error).__name__ if isinstance(error, Exception) else ''} {error}".split())
        self.failed.append(name)
        self.say(f"\n{name}: failed: {why[:1000]}")
        self.add(f"{name}.failed", 1, "")

    def page(self) -> str:
        """Return the page as Markdown."""
        head = [f"# gpushare on {self.machine['gpu']}, {self.date.isoformat()}{', ' * bool(self.part)}{self.part}", ""]
        if "(simulated)" in self.machine["gpu"]:
            head += [SIMULATED, ""]
        head += [f"- {name}: {value}" for name, value in self.machine.items()]
        return "\n".join([*head, *map(str, self.text), ""])

    def write(self, directory: Path) -> Path:
        """Write all files, each atomically. Return the path of the page."""
        directory.mkdir(parents=True, exist_ok=True)
        model = re.sub(r"[^a-z0-9]+", "-", self.machine["gpu"].lower()).strip("-")
        page = directory / f"{self.date.isoformat()}-gpu-{model}{'-' * bool(self.part)}{self.part}.md"
        document = {
            "date": self.date.isoformat(),
            "machine": dict(self.machine),
            "failed": self.failed,
            "figures": self.figures,
        }
        records.write_file(page, self.page())
        records.write_file(page.with_suffix(".json"), json.dumps(document, indent=1) + "\n")
        for end, content in self.attached.items():
            records.write_file(page.with_suffix(end), content)
        return page


def narrow(page: str) -> str:
    """Return a page without the padding of its tables: of a long output often only the end is stored."""
    return re.sub(r"-{4,}", "---", re.sub(r" {2,}", " ", page))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median and the range of the rounds."""
    middle = f"{statistics.median(values):.{digits}f}"
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else middle
