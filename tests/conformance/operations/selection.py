"""The ConfigMap entry that a node follows."""

from __future__ import annotations

from typing import Any

from gpushare.config import config_choice
from tests.conformance.runner import Case, Facets, OutsideError


def select_config(case: Case) -> Any:
    values = case.input
    return config_choice.select(
        values["files"],
        label=values.get("label"),
        default=values.get("default_config") or "",
        fallbacks=values.get("fallback_strategies") or (),
    )


def apply_config_change(case: Case) -> Any:
    values = case.input
    if not values.get("process_running", True):
        raise OutsideError("the agent reads the ConfigMap itself: there is no other process to be signalled")
    current, selected = values["current"], values.get("selected")
    asked = values.get("label", selected)
    old, new = "before", "after" if values.get("content_changed") else "before"
    entries = dict.fromkeys({current, selected} - {None, ""}, new) or {"another": ""}
    before = config_choice.ActiveConfig(current, old if current else "")
    decision = config_choice.decide(
        before,
        entries,
        label=asked or None,
        fallbacks=("empty",),
    )
    in_force = decision.in_force.name if decision.in_force else None
    return Facets(
        link="/dev/null" if in_force == config_choice.EMPTY else in_force,
        signal=decision.in_force != before,
        reload=decision.in_force != before,
        sidecar_exits=False,  # there is none, and the agent continues
        report="event or condition" if decision.problem else "",
    )


OPERATIONS = {"select_config": select_config, "apply_config_change": apply_config_change}
