"""The generated parts of the chart are current, and the rest agrees with the project."""

from __future__ import annotations

import importlib.util
import json
from types import ModuleType
from typing import Any

import pytest
import yaml

import gpushare
from gpushare import policies
from gpushare.daemon import lifecycle
from tests.chart.conftest import CHART

Json = dict[str, Any]
VALUES: Json = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: Json = json.loads((CHART / "values.schema.json").read_text())
# Mappings of Kubernetes or of the user, with arbitrary keys.
OPEN = {"affinity", "podSecurityContext", "securityContext", "updateStrategy"}


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_chart", CHART.parent / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_and_table_are_up_to_date(make: ModuleType) -> None:
    made = make.made()
    assert make.there() == set(made), "run make chart"
    assert [str(path) for path, text in made.items() if path.read_text() != text] == [], "run make chart"


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (gpushare.__version__, gpushare.__version__)
    assert chart["kubeVersion"].startswith(">=1.30")


def test_the_chart_has_no_hooks_and_renders_deterministically() -> None:
    for path in (CHART / "templates").iterdir():
        text = path.read_text()
        if path.name == "configurations.yaml":  # finds nothing when rendered without a cluster
            assert text.count("lookup ") == 1 + text.count("(helm template, Argo CD) lookup ")
            text = text.replace("lookup ", "")
        for word in (
            "helm.sh/hook",
            "lookup ",
            "rand",
            "genCA",
            "genSigned",
            "genSelf",
            "now |",
            "{{ now",
            "uuidv4",
            ".Capabilities",
        ):
            assert word not in text, f"{path.name}: {word}"


def resolved(schema: Json) -> Json:
    while "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


def closed(schema: Json, way: str = "") -> list[str]:
    """Return the places where one of the chart's mappings accepts unknown keys."""
    schema = resolved(schema)
    if schema.get("type") != "object" or way.rpartition(".")[2] in OPEN:
        return []
    inner = [place for key, value in schema.get("properties", {}).items() for place in closed(value, f"{way}.{key}")]
    is_open = "additionalProperties" not in schema
    return [*inner, *([way] if is_open else [])]


def test_the_schema_rejects_unknown_keys() -> None:
    assert closed(SCHEMA) == [".global"]


def leaves(values: Json, schema: Json, way: str = "") -> list[str]:
    """Return the values that the schema does not name."""
    missing = []
    schema = resolved(schema)
    for key, value in values.items():
        known = schema.get("properties", {}).get(key)
        if known is None:
            missing += [] if "properties" not in schema else [f"{way}{key}"]
        elif isinstance(value, dict):
            missing += leaves(value, known, f"{way}{key}.")
    return missing


def test_the_schema_names_every_value() -> None:
    assert leaves(VALUES, SCHEMA) == []


def names(schema: Json, values: Any, way: str = "") -> list[str]:
    """Return the names in the schema that values.yaml lacks."""
    schema = resolved(schema)
    missing = []
    for key, inner in schema.get("properties", {}).items():
        if not isinstance(values, dict) or key not in values:
            missing.append(f"{way}{key}")
        elif resolved(inner).get("type") == "object":
            missing += names(inner, values[key], f"{way}{key}.")
    return missing


def test_values_yaml_has_every_value_of_the_schema() -> None:
    optional = {"limits", "claims", "requests", "name", "kind", "group"}  # defined by Kubernetes
    assert [name for name in names(SCHEMA, VALUES) if name.rpartition(".")[2] not in optional] == ["enabled"]


def test_enums_of_the_schema_equal_those_of_the_code() -> None:
    webhook = SCHEMA["properties"]["webhook"]["properties"]
    assert webhook["policy"]["enum"] == ["", *policies.POLICIES]
    assert SCHEMA["$defs"]["logLevel"]["enum"] == ["", *lifecycle.LOG_LEVELS]


def test_every_value_has_a_description(make: ModuleType) -> None:
    """Names that Kubernetes or all charts use need no description."""
    plain = {
        *("replicas", "resources", "nodeSelector", "tolerations", "affinity", "priorityClassName", "podAnnotations"),
        *("podLabels", "updateStrategy", "terminationGracePeriodSeconds", "maxUnavailable", "podDisruptionBudget"),
    }
    rows = list(make.rows_of((CHART / "values.yaml").read_text()))
    assert len(rows) > 70
    silent = [key for key, meaning, _ in rows if not meaning and not plain & set(key.split("."))]
    assert silent == ["networkPolicy.enabled"]
