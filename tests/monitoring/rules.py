"""The alerting and recording rules on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "config" / "components" / "monitoring"
FILE = FOLDER / "rules.yaml"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A recording rule or an alert, by `name`."""

    name: str
    expression: str
    is_alert: bool
    lasts: str  # `for`
    severity: str
    annotations: Mapping[str, str]


def _rule(entry: Mapping[str, Any]) -> Rule:
    return Rule(
        entry.get("alert") or entry["record"],
        entry["expr"],
        "alert" in entry,
        entry.get("for", "0s"),
        entry.get("labels", {}).get("severity", ""),
        entry.get("annotations", {}),
    )


RULES = [_rule(entry) for group in yaml.safe_load(FILE.read_text())["groups"] for entry in group["rules"]]
ALERTS = {rule.name: rule for rule in RULES if rule.is_alert}
RECORDS = {rule.name: rule for rule in RULES if not rule.is_alert}
