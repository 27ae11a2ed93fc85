"""The output of a bench: tables during the measurement, figures as JSON, and at the end a page with plots."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import re
from pathlib import Path

from launches import cores, plots

PREFIX = "interposer."
ONE_OF_MANY = re.compile(r"(split|handover)\.\d")


@dataclasses.dataclass
class Report:
    """The tables and figures of a run. prefix: begins each figure's name."""

    seconds: float
    prefix: str = PREFIX
    figures: list[dict[str, object]] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)
    busy: list[float] = dataclasses.field(default_factory=list)
    _seen: tuple[float, float] = dataclasses.field(default_factory=cores.busy_seconds)

    def say(self, text: str = "") -> None:
        """Print a line of a table, and store it for the page."""
        print(text, flush=True)
        self.lines.append(text)

    def add(self, name: str, value: float, unit: str, *, goal: float, against: str = "goal") -> None:
        """Add a figure and the value to compare it with."""
        ratio = round(value / goal, 3) if goal else None
        figure = {"figure": f"{self.prefix}{name}", "value": round(value, 3), "unit": unit, "against": against}
        self.figures.append({**figure, "goal": round(goal, 3), "ratio": ratio})

    def record_busy_cores(self) -> None:
        """Record how many cores were busy since the last call, including those of the bench."""
        before, self._seen = self._seen, cores.busy_seconds()
        passed = self._seen[0] - before[0]
        self.busy.append((self._seen[1] - before[1]) / passed if passed else 0.0)

    def print_figures(self) -> None:
        """Print one JSON object a line."""
        for figure in self.figures:
            print(json.dumps({key: value for key, value in figure.items() if key != "goal"}))

    def write(self, directory: Path) -> Path:
        """Write the page and its plots, and return the page's path."""
        day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        drawn = plots.draw(self.figures, directory, f"{day}-interposer")
        goals = [
            figure for figure in self.figures if figure["against"] == "goal" and not ONE_OF_MANY.match(_short(figure))
        ]
        page = [
            f"# The library and the arbiter, {day}",
            "",
            f"`python bench/interposer.py --seconds {self.seconds:g}` on a simulated GPU: {os.cpu_count()} cores "
            f"({platform.machine()}), Python {platform.python_version()}, {min(self.busy):.1f} to "
            f"{max(self.busy):.1f} of them busy while it ran. Kernels take their time without computing; "
            "processes take turns of 2 ms on the simulated GPU as on a real one, and each switch takes 0.1 ms.",
            "",
            "| figure | here | aim |",
            "|---|---|---|",
            *(
                f"| {_short(goal)} | {goal['value']:g} {goal['unit']} | {goal['goal']:g} {goal['unit']} |"
                for goal in goals
            ),
            "",
            *(f"![{path.stem}]({path.name})" for path in drawn),
            "",
            "```",
            *self.lines,
            "```",
            "",
        ]
        target = directory / f"{day}-interposer.md"
        target.write_text("\n".join(page))
        return target


def _short(figure: dict[str, object]) -> str:
    return str(figure["figure"]).removeprefix(PREFIX)
