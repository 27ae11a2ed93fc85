"""Makes what programs read of what people write here: of dashboards/*.yaml JSON for Grafana, of rules.yaml an object of
the Prometheus operator.

Words of a dashboard: `kind` is how a panel is shown: a number (stat), lines over time, areas on top of each other,
bars, or a table. `queries` are by legend; of a table by header, and joined by their labels. `columns` are those labels
with their headers, in order. `steps` is a name in STEPS. A row's panels are up to 24 wide together; then they wrap.

Run: `make docs`; a test says when it is time to.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# From which value on which colour.
STEPS: dict[str, list[tuple[float | None, str]]] = {
    "plain": [(None, "blue")],
    "any-is-bad": [(None, "green"), (1, "red")],
    "any-is-a-warning": [(None, "green"), (1, "yellow")],
    "none-is-bad": [(None, "red"), (1, "green")],
    "none-is-a-warning": [(None, "yellow"), (1, "green")],
    "two-are-good": [(None, "red"), (1, "yellow"), (2, "green")],
    "full": [(None, "green"), (0.8, "yellow"), (0.95, "red")],
    "waits": [(None, "green"), (600, "yellow"), (3600, "red")],
}
KINDS = {"stat": "stat", "lines": "timeseries", "areas": "timeseries", "bars": "bargauge", "table": "table"}
# A cell of these columns leads to the dashboard of what it names.
LINKS = {"node": "node", "namespace": "namespace", "pod": "pod"}


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """A panel; the fields are explained above."""

    title: str
    kind: str
    width: int
    help: str
    queries: dict[str, str]
    unit: str = "short"
    units: dict[str, str] = dataclasses.field(default_factory=dict)
    steps: str = "plain"
    most: float | None = None
    columns: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, word, known in (("kind", self.kind, KINDS), ("steps", self.steps, STEPS)):
            if word not in known:
                raise ValueError(f'the panel "{self.title}" has {key}: {word}; write one of {", ".join(known)}')

    def document(self, position: dict[str, int], number: int) -> dict[str, Any]:
        """The panel for Grafana."""
        colours = [{"value": value, "color": colour} for value, colour in STEPS[self.steps]]
        defaults: dict[str, Any] = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": colours}}
        if self.most is not None:
            defaults |= {"min": 0, "max": self.most}
        made: dict[str, Any] = {
            "id": number,
            "type": KINDS[self.kind],
            "title": self.title,
            "description": self.help,
            "datasource": DATASOURCE,
            "gridPos": position,
            "targets": [
                self._target(*query, chr(ord("A") + order)) for order, query in enumerate(self.queries.items())
            ],
            "fieldConfig": {"defaults": defaults, "overrides": []},
        }
        getattr(self, f"_{self.kind}")(made, defaults)
        return made

    def _target(self, legend: str, expression: str, identity: str) -> dict[str, Any]:
        over_time = self.kind in {"lines", "areas"}
        return {
            "refId": identity,
            "datasource": DATASOURCE,
            "expr": expression,
            "legendFormat": legend or "__auto",
            "format": "table" if self.kind == "table" else "time_series",
            "instant": not over_time,
            "range": over_time,
        }

    def _stat(self, made: dict[str, Any], _: dict[str, Any]) -> None:
        made["options"] = {"colorMode": "background", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}

    def _lines(self, made: dict[str, Any], defaults: dict[str, Any]) -> None:
        defaults |= {
            "color": {"mode": "palette-classic"},
            "min": 0,
            "custom": {"fillOpacity": 5, "showPoints": "never"},
        }
        made["options"] = {"legend": {"placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}

    def _areas(self, made: dict[str, Any], defaults: dict[str, Any]) -> None:
        self._lines(made, defaults)
        defaults["custom"] |= {"fillOpacity": 60, "stacking": {"mode": "normal"}}

    def _bars(self, made: dict[str, Any], defaults: dict[str, Any]) -> None:
        defaults["min"] = 0
        made["options"] = {
            "orientation": "horizontal",
            "displayMode": "basic",
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }

    def _table(self, made: dict[str, Any], _: dict[str, Any]) -> None:
        several = len(self.queries) > 1
        values = {
            f"Value #{chr(ord('A') + order)}" if several else "Value": name for order, name in enumerate(self.queries)
        }
        names = {**self.columns, **{value: name for value, name in values.items() if name}}
        keep = "|".join(names).replace("#", "\\#")
        made["transformations"] = [
            *([{"id": "merge", "options": {}}] if several else []),
            {"id": "filterFieldsByName", "options": {"include": {"pattern": f"^({keep})$"}}},
            {
                "id": "organize",
                "options": {"renameByName": names, "indexByName": {name: order for order, name in enumerate(names)}},
            },
        ]
        overrides = [
            {"matcher": {"id": "byName", "options": header}, "properties": [{"id": "unit", "value": unit}]}
            for header, unit in self.units.items()
        ]
        overrides += [
            {
                "matcher": {"id": "byName", "options": self.columns[label]},
                "properties": [{"id": "links", "value": [{"title": "Open its dashboard", "url": self._link(label)}]}],
            }
            for label in LINKS
            if label in self.columns
        ]
        made["fieldConfig"]["overrides"] = overrides

    def _link(self, label: str) -> str:
        beside = "&var-namespace=${__data.fields.Namespace}" if label == "pod" and "namespace" in self.columns else ""
        return f"/d/gpushare-{LINKS[label]}?var-{label}=${{__value.text}}{beside}"


def dashboard(name: str, written: dict[str, Any]) -> dict[str, Any]:
    """A dashboard for Grafana, of its YAML."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in written["rows"]:
        bar = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row["title"], "gridPos": bar, "panels": []})
        top, left = top + 1, 0
        for panel in (Panel(**panel) for panel in row["panels"]):
            if left + panel.width > WIDTH:
                top, left = top + row["height"], 0
            position = {"x": left, "y": top, "w": panel.width, "h": row["height"]}
            panels.append(panel.document(position, len(panels) + 1))
            left += panel.width
        top += row["height"]
    return {
        "uid": f"gpushare-{name}",
        "title": written["title"],
        "tags": ["gpushare"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["gpushare"], "title": "gpushare", "asDropdown": True, "keepTime": True}
        ],
        "templating": {"list": [_datasource(), *(_variable(*item) for item in written["variables"].items())]},
        "panels": panels,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "variable"},
        "refresh": 2,
        "sort": 1,
        "includeAll": False,
        "multi": False,
    }


def prometheus_rule(rules: str) -> str:
    """The rules as an object of the operator: the very text, so that its comments stay."""
    groups = textwrap.indent(rules[rules.index("groups:") :], "  ")
    return f"""\
# Generated from rules.yaml by make.py.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpushare
  namespace: gpushare-system
  labels:
    app.kubernetes.io/name: gpushare
spec:
{groups}"""


def made() -> dict[str, str]:
    """Each file that is made, by its path from here."""
    files = {"prometheusrule.yaml": prometheus_rule((HERE / "rules.yaml").read_text())}
    for path in sorted((HERE / "dashboards").glob("*.yaml")):
        document = dashboard(path.stem, yaml.safe_load(path.read_text()))
        files[f"grafana/gpushare-{path.stem}.json"] = json.dumps(document, indent=1) + "\n"
    return files


def main(folder: Path) -> None:
    """Write each of them into `folder`, by its path."""
    for name, text in made().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
