"""Every alert fires when it should and not before, and stays silent otherwise, according to promtool."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import unpacked
from tests.docs import pages, test_links
from tests.monitoring import cases, promql, rules
from tests.monitoring.rules import ALERTS, RECORDS, RULES


def promtool(*arguments: str | Path) -> str:
    command = [unpacked.program("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_promtool_accepts_the_rules() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", rules.FILE)


def test_there_is_a_case_for_each_rule() -> None:
    assert set(cases.CASES) == set(ALERTS)
    assert set(cases.RECORDED) == set(RECORDS)


def firing(name: str, at: str, count: int) -> dict[str, Any]:
    expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    return {"expr": expression, "eval_time": at, "exp_samples": [{"labels": "{}", "value": count}]}


@dataclasses.dataclass(slots=True)
class Story:
    """Series and the expected alerts.

    about: all metrics that the alerts depend on, present or absent.
    """

    series: dict[str, str]
    expected: list[dict[str, Any]]
    about: set[str]

    def document(self) -> dict[str, Any]:
        inputs = [{"series": series, "values": values} for series, values in self.series.items()]
        return {"interval": "1m", "input_series": inputs, "promql_expr_test": self.expected}


def stories() -> Iterator[Story]:
    for name, case in cases.CASES.items():
        waits = ALERTS[name].lasts != "0s"
        about = promql.metrics(ALERTS[name].expression)
        expected = [firing(name, f"{case.at}m", case.count), *([firing(name, "0m", 0)] if waits else [])]
        yield Story(dict(case.fires), expected, about)
        for quiet in case.quiet:
            yield Story(dict(quiet), [firing(name, f"{case.at}m", 0)], about)
    for name, (series, at, expected_samples) in cases.RECORDED.items():
        samples = [{"labels": labels, "value": value} for labels, value in expected_samples.items()]
        about = set().union(*map(promql.metrics, series))
        yield Story(dict(series), [{"expr": name, "eval_time": f"{at}m", "exp_samples": samples}], about)


def packed(batch: Iterable[Story]) -> list[Story]:
    """Merge stories about different metrics, because each run of promtool takes half a second."""
    bins: list[Story] = []
    for story in batch:
        for other in bins:
            if not other.about & story.about:
                other.series |= story.series
                other.expected += story.expected
                other.about |= story.about
                break
        else:
            bins.append(story)
    return bins


@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert promtool_errors(tmp_path, packed(stories())) == ""


@pytest.mark.slow
def test_a_wrong_expectation_is_detected(tmp_path: Path) -> None:
    case = cases.CASES["GpushareRunsUnlimited"]
    assert "FAILED" in promtool_errors(
        tmp_path, [Story(dict(case.fires), [firing("GpushareRunsUnlimited", "90m", 0)], set())]
    )


def promtool_errors(directory: Path, batch: Iterable[Story]) -> str:
    """Run promtool on the stories; return its errors."""
    tests = [story.document() for story in batch]
    document = {"rule_files": [str(rules.FILE)], "evaluation_interval": "1m", "tests": tests}
    (directory / "test.yaml").write_text(yaml.safe_dump(document))
    try:
        promtool("test", "rules", directory / "test.yaml")
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_summary_and_a_runbook_link(name: str) -> None:
    alert = ALERTS[name]
    assert name.startswith("Gpushare")
    assert alert.severity in {"critical", "warning", "info"}
    assert set(alert.annotations) == {"summary", "description", "runbook"}
    assert re.fullmatch(r"[A-Z].*\.", alert.annotations["summary"])
    assert alert.annotations["description"].endswith(".")
    assert len(alert.annotations["description"]) > 40
    page, _, anchor = alert.annotations["runbook"].partition("#")
    assert anchor in test_links.anchors(pages.ROOT / page)


def test_the_manual_lists_every_alert_with_severity_and_runbook() -> None:
    listed = {
        name: (cells[0], re.findall(r"\(#([\w-]+)\)", cells[-1]))
        for name, cells in pages.rows("docs/operations.md", "## Alerts").items()
    }
    there = {name: (alert.severity, [alert.annotations["runbook"].partition("#")[2]]) for name, alert in ALERTS.items()}
    assert listed == there
