"""Draws the dashboards roughly as Grafana would: their own panels and queries, evaluated by a real Prometheus.

Its data is an invented night (`night.py`), so that the pictures show something.

Run: `make pictures`.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import night
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lab import unpacked
from tests.monitoring import dashboards, prometheus, rules

HERE = Path(__file__).resolve().parent
BEGAN: Final = 1764000000
END: Final = BEGAN + 60 * night.MINUTES
STEP_SECONDS: Final = 60 * night.STEP
VARIABLES: Final = {
    "node": "gpu-3",
    "namespace": "vision",
    "__rate_interval": "15m",
    "__range": f"{night.MINUTES}m",
}
OF_POD: Final = {"namespace": "web", "pod": "answers-3"}
PAPER, PANEL, INK, FAINT = "#111217", "#181b1f", "#d5d8de", "#7f8797"
COLOURS: Final = {"green": "#73bf69", "yellow": "#f2cc0c", "red": "#e02f44", "blue": "#5794f2"}
LINES: Final = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#e02f44", "#b877d9", "#56b6c2", "#8f8f8f", "#fade2a")
# Each state of the GPUs has its own colour.
STATES: Final = {
    "allocated": "#5794f2",
    "held": "#b877d9",
    "free": "#73bf69",
    "fragmented": "#ff9830",
    "cordoned": "#f2cc0c",
    "unhealthy": "#e02f44",
    "other-mode": "#8f8f8f",
}
INCH: Final = 0.42  # of a row of Grafana's grid

Found = list[tuple[dict[str, str], float]]


def number(value: float, unit: str) -> str:
    """As Grafana writes it."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "bytes":
        return next(
            f"{value / size:.3g} {word}"
            for size, word in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (1, "B"))
            if value >= size or size == 1
        )
    if unit == "s":
        return (
            f"{value / 3600:.1f} h"
            if value >= 3600
            else f"{value / 60:.0f} min"
            if value >= 60
            else f"{1000 * value:.0f} ms"
            if 0 < value < 1
            else f"{value:.0f} s"
        )
    return f"{value:.4g}"


class Picture:
    """One dashboard."""

    def __init__(self, seen: prometheus.Prometheus, document: dict[str, Any]) -> None:
        self._seen = seen
        self._document = document

    def draw(self, path: Path) -> None:
        """Write it."""
        panels = self._document["panels"]
        height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
        figure = Figure(figsize=(15, INCH * (height + 1.4)), facecolor=PAPER)
        figure.text(0.012, 1 - 0.9 / (height + 1.4), self._document["title"], color=INK, fontsize=15, weight="bold")
        for panel in panels:
            at = panel["gridPos"]
            left, width = at["x"] / 24 + 0.004, at["w"] / 24 - 0.008
            bottom = 1 - (at["y"] + at["h"] + 1.4) / (height + 1.4)
            if panel["type"] == "row":
                figure.text(0.012, bottom + 0.3 / (height + 1.4), panel["title"], color=INK, fontsize=11)
                continue
            unit = 1 / (height + 1.4)
            box = (left, bottom + 0.1 * unit, width, (at["h"] - 0.2) * unit)
            frame = figure.add_axes(box, facecolor=PANEL)
            frame.set(xticks=[], yticks=[])
            for side in frame.spines.values():
                side.set_color("#2c3235")
            figure.text(left + 0.006, box[1] + box[3] - 0.75 * unit, panel["title"], color=INK, fontsize=9.5)
            self._fill(figure, panel, box, unit)
        figure.savefig(path, dpi=84, facecolor=PAPER)

    def _fill(self, figure: Any, panel: dict[str, Any], box: tuple[float, float, float, float], unit: float) -> None:
        left, bottom, width, height = box
        inner = {
            "timeseries": (left + 0.037, bottom + 1.75 * unit, width - 0.05, height - 2.95 * unit),
            "bargauge": (left + 0.006, bottom + 0.3 * unit, width - 0.012, height - 1.4 * unit),
        }.get(panel["type"], (left + 0.006, bottom + 0.2 * unit, width - 0.012, height - 1.2 * unit))
        axes = figure.add_axes(inner, facecolor="none")
        draw: dict[str, Callable[[Axes, dict[str, Any]], None]] = {
            "stat": self._stat,
            "timeseries": self._timeseries,
            "bargauge": self._bars,
            "table": self._table,
        }
        for side in axes.spines.values():
            side.set_visible(False)
        draw[panel["type"]](axes, panel)

    def _instant(self, expression: str) -> Found:
        if expression.startswith("ALERTS{"):
            return [
                ({"alertname": name, "severity": alert.severity, **labels}, 1.0)
                for name, alert in rules.ALERTS.items()
                for labels, _ in self._instant(alert.expression)
                if alert.severity != "info"
            ]
        found = self._seen.samples(_filled(expression, self._document["uid"]), time=str(END))
        return [(dict(labels), value) for labels, value in found.items()]

    def _stat(self, axes: Axes, panel: dict[str, Any]) -> None:
        axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
        defaults = panel["fieldConfig"]["defaults"]
        found = self._instant(panel["targets"][0]["expr"])
        value = found[0][1] if found else 0.0
        axes.add_patch(Rectangle((0, 0), 1, 1, color=_colour(value, defaults), alpha=0.85))
        axes.text(0.5, 0.45, number(value, defaults["unit"]), color="white", fontsize=22, ha="center", va="center")

    def _timeseries(self, axes: Axes, panel: dict[str, Any]) -> None:
        defaults = panel["fieldConfig"]["defaults"]
        series: list[tuple[str, list[float], list[float]]] = []
        for target in panel["targets"]:
            asked = {
                "query": _filled(target["expr"], self._document["uid"]),
                "start": str(BEGAN),
                "end": str(END),
                "step": str(STEP_SECONDS),
            }
            for one in self._seen.get("query_range", **asked)["result"]:
                values = {int(float(at)): float(value) for at, value in one["values"]}
                times = list(range(BEGAN, END + 1, STEP_SECONDS))
                gap = 0.0 if "stacking" in defaults["custom"] else float("nan")
                series.append(
                    (
                        _legend(target, one["metric"]),
                        [(at - BEGAN) / 3600 for at in times],
                        [values.get(at, gap) for at in times],
                    )
                )
        series.sort(key=lambda one: ([*STATES].index(one[0]) if one[0] in STATES else 0, one[0]))
        colours = [STATES.get(name, LINES[order % len(LINES)]) for order, (name, _, _) in enumerate(series)]
        if "stacking" in defaults["custom"] and series:
            axes.stackplot(
                series[0][1],
                [values for _, _, values in series],
                labels=[name for name, _, _ in series],
                colors=colours,
                alpha=0.75,
                step="post",
            )
        else:
            for (name, times, values), colour in zip(series, colours, strict=True):
                axes.plot(times, values, color=colour, linewidth=1.2, label=name)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, night.MINUTES / 60)
        axes.grid(color="#2c3235", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(colors=FAINT, labelsize=7.5, length=0)
        axes.yaxis.set_major_formatter(lambda value, _: number(value, defaults["unit"]))
        axes.xaxis.set_major_formatter(lambda value, _: f"{(22 + int(value)) % 24:02d}:{round(60 * (value % 1)):02d}")
        if defaults["unit"] == "bytes":
            axes.yaxis.set_major_locator(
                ticker.MultipleLocator(2 ** math.ceil(math.log2(max(axes.get_ylim()[1], 5) / 5)))
            )
        columns = max(1, min(len(series), panel["gridPos"]["w"] // 2))
        shown = min(len(series), 2 * columns)
        if shown:
            handles, labels = axes.get_legend_handles_labels()
            axes.legend(
                handles[:shown],
                labels[:shown],
                loc="upper left",
                bbox_to_anchor=(-0.02, -0.09),
                ncols=columns,
                fontsize=6.8,
                labelcolor=INK,
                frameon=False,
                handlelength=1,
                columnspacing=1.2,
                labelspacing=0.3,
            )

    def _bars(self, axes: Axes, panel: dict[str, Any]) -> None:
        defaults = panel["fieldConfig"]["defaults"]
        (target,) = panel["targets"]
        found = sorted(
            ((_legend(target, labels), value) for labels, value in self._instant(target["expr"])),
            key=lambda one: one[1],
        )[-10:]
        most = defaults.get("max") or max([value for _, value in found], default=1.0) or 1.0
        axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(-0.5, max(3, len(found)) - 0.5))
        left = 0.5 if panel["gridPos"]["w"] < 8 else 0.3
        for order, (name, value) in enumerate(found):
            axes.barh(order, 0.86 - left, left=left, height=0.6, color="#22252b")
            full = (0.86 - left) * min(1.0, value / most)
            axes.barh(order, full, left=left, height=0.6, color=_colour(value, defaults))
            axes.text(left - 0.015, order, name[-22:], color=INK, fontsize=7.5, ha="right", va="center")
            axes.text(0.875, order, number(value, defaults["unit"]), color=INK, fontsize=8, va="center")

    def _table(self, axes: Axes, panel: dict[str, Any]) -> None:
        axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
        names = next(
            transformation["options"]["renameByName"]
            for transformation in panel["transformations"]
            if transformation["id"] == "organize"
        )
        columns = {label: header for label, header in names.items() if not label.startswith("Value")}
        units = {
            override["matcher"]["options"]: override["properties"][0]["value"]
            for override in panel["fieldConfig"]["overrides"]
            if override["properties"][0]["id"] == "unit"
        }
        rows: dict[tuple[str, ...], dict[str, str]] = {}
        headers = [header for label, header in names.items() if label.startswith("Value")]
        queries = zip(panel["targets"], headers or [""], strict=False)
        for target, header in queries:
            for labels, value in self._instant(target["expr"]):
                row = rows.setdefault(tuple(labels.get(label, "") for label in columns), {})
                row[header] = number(value, units.get(header, panel["fieldConfig"]["defaults"]["unit"]))
        head = [*columns.values(), *headers]
        cells = [[*key, *(row.get(header, "") for header in headers)] for key, row in sorted(rows.items())]
        widths = [max(map(len, column)) + 2 for column in zip(head, *cells, strict=True)]
        starts = [sum(widths[:order]) / sum(widths) for order in range(len(widths))]
        line = INCH / (axes.get_position().height * axes.figure.get_size_inches()[1]) * 0.62
        fit = int(1 / line) - 1
        for order, row in enumerate([head, *cells[:fit]]):
            for start, text in zip(starts, row, strict=True):
                axes.text(
                    start,
                    1 - line * (order + 0.5),
                    text,
                    color=COLOURS["blue"] if not order else INK,
                    fontsize=7.3,
                    va="center",
                )
        if not cells:
            axes.text(0.5, 0.5, "No data", color=FAINT, fontsize=10, ha="center", va="center")


def _filled(expression: str, dashboard: str) -> str:
    for name, value in (VARIABLES | OF_POD if dashboard == "gpushare-pod" else VARIABLES).items():
        expression = expression.replace(f"${name}", value)
    return re.sub(r"\[(5|10)m\]", "[15m]", expression)  # a sample each five minutes is all there is


def _legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), target["legendFormat"].replace("__auto", ""))


def _colour(value: float, defaults: dict[str, Any]) -> str:
    steps = defaults["thresholds"]["steps"]
    return COLOURS[[step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]]


def main(folder: Path) -> None:
    """Draw them all."""
    with tempfile.TemporaryDirectory() as scratch:
        told, data = Path(scratch) / "night.txt", Path(scratch) / "prometheus" / "data"
        told.write_text("".join(night.Night().tell(BEGAN)))
        command = [unpacked.program("promtool"), "tsdb", "create-blocks-from", "openmetrics", told, data]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        more = ("--query.lookback-delta=4m", "--storage.tsdb.retention.time=100y")
        with prometheus.running(Path(scratch) / "prometheus", [], more=more) as seen:
            for name, document in dashboards.DOCUMENTS.items():
                Picture(seen, document).draw(folder / f"dashboard-{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
