"""Dashboards match their tables, have a regular layout, and query only metrics that exist."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import pages, test_names
from tests.monitoring import dashboards, promql, rules

# Prometheus' metrics, and those of evaluated rules.
OWN = {
    "up": {"job", "instance", "node"},
    "ALERTS": {"alertname", "alertstate", "severity", "node", "namespace", "pod"},
}
TOLD = {name: {*labels, "node"} for metrics in test_names.METRICS.values() for name, (_, labels) in metrics.items()}
TOLD |= {f"{name}_bucket": {*labels, "le"} for name, labels in TOLD.items() if name.endswith("_duration_seconds")}
# Recorded metrics are named LEVEL:METRIC:OPERATION, and have the level as a label.
RECORDED = {name: set() if name.startswith("cluster:") else {name.partition(":")[0]} for name in rules.RECORDS}
KNOWN = {**OWN, **TOLD, **RECORDED}
EXPRESSIONS = {
    **{str(query): query.expression for query in dashboards.QUERIES},
    **{rule.name: rule.expression for rule in rules.RULES},
}


def test_metrics_and_labels_are_found_in_expressions() -> None:
    text = 'sum by (node, le) (rate(a_total{job=~"x|y{z}", mode!="m"}[5m] offset 1h)) / on (gpu) group_left b:c:d > 1 or vector(0)'
    assert promql.metrics(text) == {"a_total", "b:c:d"}
    assert promql.labels(text) == {"node", "le", "job", "mode", "gpu"}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_use_only_existing_metrics_and_labels(name: str) -> None:
    asked = promql.metrics(EXPRESSIONS[name])
    assert asked
    assert asked - KNOWN.keys() == set()
    there = set().union(*(KNOWN[metric] for metric in asked))
    assert promql.labels(EXPRESSIONS[name]) - there == set()


@pytest.mark.parametrize("query", dashboards.QUERIES, ids=str)
def test_legends_and_columns_use_existing_labels(query: dashboards.Query) -> None:
    there = set().union(*(KNOWN[metric] for metric in promql.metrics(query.expression)))
    assert {*re.findall(r"{{(\w+)}}", query.legend), *query.columns} - there == set()


def test_variables_query_existing_metrics() -> None:
    for name, document in dashboards.DOCUMENTS.items():
        asked = [template for template in document["templating"]["list"] if template["type"] == "query"]
        for template in asked:
            match = re.fullmatch(r"label_values\(([\w:]+)(?:{(.*)})?, (\w+)\)", template["query"]["query"])
            assert match, name
            assert match[3] in KNOWN[match[1]]
        used = {
            variable
            for query in dashboards.QUERIES
            if query.dashboard == name
            for variable in re.findall(r"\$([a-z]+)", query.expression)
        }
        assert used == {template["name"] for template in asked}


@pytest.mark.slow
def test_the_dashboards_equal_the_output_of_make_py(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(rules.FOLDER / "make.py"), str(tmp_path)], check=True, timeout=60)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert made
    assert {path: (rules.FOLDER / path).read_text() for path in made} == made, "run: make docs"
    assert {path.name for path in made if path.parent.name} == {path.name for path in dashboards.FILES}
    object_ = yaml.safe_load((rules.FOLDER / "prometheusrule.yaml").read_text())
    assert object_["spec"] == yaml.safe_load(rules.FILE.read_text())


def test_the_component_has_all_dashboards() -> None:
    component = yaml.safe_load((rules.FOLDER / "kustomization.yaml").read_text())
    (generated,) = component["configMapGenerator"]
    assert generated["files"] == [f"grafana/{path.name}" for path in dashboards.FILES]
    assert generated["options"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize("name", dashboards.DOCUMENTS)
def test_the_manual_shows_each_dashboard(name: str) -> None:
    assert f"(images/dashboard-{name}.png)" in (pages.ROOT / "docs" / "monitoring.md").read_text()
    assert (pages.ROOT / "docs" / "images" / f"dashboard-{name}.png").exists()


@pytest.mark.parametrize("name", dashboards.DOCUMENTS)
def test_panels_have_no_gaps_or_overlaps(name: str) -> None:
    document = dashboards.DOCUMENTS[name]
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        at = panel["gridPos"]
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not taken & cells, panel["title"]
        taken |= cells
    height = max(y for _, y in taken) + 1
    assert taken == set(itertools.product(range(24), range(height)))
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("name", dashboards.DOCUMENTS)
def test_each_panel_has_a_description_and_a_unit(name: str) -> None:
    shown = dashboards.panels(dashboards.DOCUMENTS[name])
    titles = [panel["title"] for panel in shown]
    assert len(titles) >= 8
    for panel in shown:
        assert re.fullmatch(r"[A-Z0-9`].*\.", panel["description"]), panel["title"]
        assert 1 <= len(panel["targets"]) <= 3
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def words(text: str) -> dict[str, Any]:
    panel = {"title": "T", "kind": "stat", "width": 24, "help": "H.", "queries": {"": "up"}}
    return {
        "title": "D",
        "variables": {},
        "rows": [{"title": "R", "height": 4, "panels": [panel | yaml.safe_load(text)]}],
    }


@pytest.mark.parametrize("wrong", ["{colour: red}", "{kind: pie}", "{steps: blue}"])
def test_a_meaningless_word_is_rejected(wrong: str) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(rules.FOLDER)!r}); import make; make.dashboard('d', {words(wrong)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert re.search(r"[a-z]+", wrong[1:])[0] in done.stderr  # type: ignore[index]
