"""What was measured: tables for people while it runs, then a page and a file of figures in `bench/results/`."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"


@dataclasses.dataclass
class Report:
    """Figures and tables, in the order in which they came.

    Each figure has the name, value and unit, what it is compared with (`against`, with its value `goal`), and the
    single rounds that it is the median of. `alone`: what workloads do natively, in percent, once that is known.
    """

    machine: Mapping[str, str]
    date: datetime.date
    figures: list[dict[str, object]] = dataclasses.field(default_factory=list)
    text: list[str] = dataclasses.field(default_factory=list)
    alone: dict[str, float] = dataclasses.field(default_factory=dict)

    def say(self, line: str = "") -> None:
        """A line of text, printed at once."""
        print(line, flush=True)
        self.text.append(line)

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table: the first column is text, the others are numbers."""
        self.say(f"\n### {title}\n")
        widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
        for row in (head, ["-" * width for width in widths], *rows):
            cells = [cell.ljust(width) for cell, width in zip(row[:1], widths, strict=False)]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            self.say("| " + " | ".join(cells) + " |")

    def add(
        self, name: str, rounds: float | Sequence[float], unit: str, *, against: str = "", goal: float | None = None
    ) -> float:
        """A figure: one value, or the rounds of which the median counts, which is returned."""
        values = [rounds] if isinstance(rounds, (int, float)) else list(rounds)
        value = statistics.median(values)
        figure: dict[str, object] = {"figure": f"gpu.{name}", "value": round(value, 3), "unit": unit}
        if against:
            figure |= {"against": against, "ratio": round(value / goal, 4) if goal else None}
        if len(values) > 1:
            figure["rounds"] = [round(measured, 3) for measured in values]
        self.figures.append(figure)
        return value

    def write(self, directory: Path) -> Path:
        """Both files; returns the page."""
        directory.mkdir(parents=True, exist_ok=True)
        model = re.sub(r"[^a-z0-9]+", "-", self.machine["gpu"].lower()).strip("-")
        page = directory / f"{self.date.isoformat()}-gpu-{model}.md"
        head = [f"# gpushare on {self.machine['gpu']}, {self.date.isoformat()}", ""]
        head += [f"- {name}: {value}" for name, value in self.machine.items()]
        page.write_text("\n".join([*head, *self.text, ""]))
        page.with_suffix(".json").write_text(
            json.dumps(
                {"date": self.date.isoformat(), "machine": dict(self.machine), "figures": self.figures}, indent=1
            )
            + "\n"
        )
        return page


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, and from where to where the rounds went."""
    middle = f"{statistics.median(values):.{digits}f}"
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else middle
