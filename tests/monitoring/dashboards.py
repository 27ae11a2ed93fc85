"""The dashboards as Grafana reads them: panels and their queries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tests.monitoring.rules import FOLDER

FILES = sorted((FOLDER / "grafana").glob("*.json"))
DOCUMENTS: dict[str, dict[str, Any]] = {
    path.stem.removeprefix("gpushare-"): json.loads(path.read_text()) for path in FILES
}


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel."""

    dashboard: str
    panel: str
    legend: str
    expression: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dashboard}/{self.panel}/{self.legend}"

    def filled(self, variables: Mapping[str, str]) -> str:
        """Replace Grafana's variables by values."""
        text = self.expression
        for name, value in variables.items():
            text = text.replace(f"${name}", value)
        assert "$" not in text, text
        return text


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that show data."""
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def _columns(panel: dict[str, Any]) -> tuple[str, ...]:
    names = [
        name
        for transformation in panel.get("transformations", ())
        if transformation["id"] == "organize"
        for name in transformation["options"]["renameByName"]
    ]
    return tuple(name for name in names if not name.startswith("Value"))


QUERIES = [
    Query(name, panel["title"], target["legendFormat"], target["expr"], _columns(panel))
    for name, document in DOCUMENTS.items()
    for panel in panels(document)
    for target in panel["targets"]
]
