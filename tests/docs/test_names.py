"""Every public name is in its table, every name in a table exists, and other pages use no other names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import prometheus_client
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from bench.gpu import __main__ as bench
from deviceplugin.report import agent_metrics
from gpushare import contract, policies, share_range
from gpushare.config import flags
from gpushare.gpu_capacity import PartState
from gpushare.mix import Mix
from gpushare.placement import explanation, filters
from gpushare.refusal import Cause
from gpushare.syntaxes.translation import SYNTAXES
from tests.docs import commands, pages
from tests.monitoring import rules
from webhook import metrics as webhook_metrics
from webhook.controllers.leader_reports import ClusterFigures

MAX_LABELS = 20
ADAPTER = pages.ROOT / "config/samples/scaling/prometheus-adapter.yaml"  # serves metrics under other names
REFERENCE, OPERATIONS = "docs/reference.md", "docs/operations.md"
EVENTS = {value for name, value in vars(contract).items() if name.startswith("EVENT_")}
CONDITIONS = {value for name, value in vars(contract).items() if name.startswith("CONDITION_")}
RESOURCES = {value for name, value in vars(contract).items() if name.startswith("RESOURCE_")}
VARIABLES = {value for name, value in vars(contract).items() if name.startswith("ENV_")}
LABELS = {
    *(contract.SHARE_LABEL, contract.SCHEDULING_GATE, contract.NODE_CONFIG_LABEL, contract.NVIDIA_CONFIG_LABEL),
    *(contract.DEFRAG_LABEL_PREFIX, contract.CORDON_ANNOTATION_PREFIX, contract.ROTATE),
    contract.BORROW_LABEL,
    *(contract.WRITTEN_BY_HELM, contract.DEMAND_LABEL, contract.IN_USE_LABEL, *contract.STARTUP_TAINTS),
    *(f"{contract.UNDERSTAND_PREFIX}{name}" for name in SYNTAXES),
}
EVERY_KEY = {*share_range.KEYS, *contract.REQUEST_KEYS, *contract.RESULT_KEYS, contract.OWN_LABELS, *LABELS, *RESOURCES}


def test_every_key_of_the_contract_has_a_kind() -> None:
    prefixes = {contract.PREFIX, contract.UNDERSTAND_PREFIX, *share_range.PREFIXES}
    no_names = {contract.API_VERSION, contract.GPUNODE_PATH, *prefixes}
    keys = {value for value in vars(contract).values() if isinstance(value, str) and "gpushare.io/" in value}
    assert keys - no_names <= EVERY_KEY


def families(registry: prometheus_client.CollectorRegistry) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return metric names as scraped → type, and labels without `node`."""
    table: dict[str, tuple[str, tuple[str, ...]]] = {}
    for family in registry.collect():
        suffix = "_total" if family.type == "counter" else ""
        table[family.name + suffix] = (family.type, labels(family))
    return table


def labels(family: Metric) -> tuple[str, ...]:
    """Return the labels of a metric's samples; it may have no samples yet."""
    if isinstance(family, GaugeMetricFamily | CounterMetricFamily):
        family.add_metric(["value"] * MAX_LABELS, 1.0)  # values after the last label are ignored
    assert family.samples, f"{family.name} has no sample to read its labels from"
    names = family.samples[-1].labels
    assert len(names) < MAX_LABELS
    return tuple(name for name in names if name not in ("node", "le"))


def of_agent() -> dict[str, tuple[str, tuple[str, ...]]]:
    made = prometheus_client.CollectorRegistry()
    made.register(agent_metrics.AgentCollector("n", agent_metrics.MetricsSnapshot))
    return families(made)


def of_webhook() -> dict[str, tuple[str, tuple[str, ...]]]:
    metrics = webhook_metrics.Metrics()
    metrics.waiting({("ml", "compute"): 1}, longest_seconds=1.0)
    made = metrics.registry
    made.register(ClusterFigures(leads=bool, nodes=tuple, mix=Mix))
    return families(made)


METRICS = {
    "## Metrics of the agent": of_agent(),
    "## Metrics of the webhook": of_webhook(),
}


def test_every_annotation_is_in_a_table() -> None:
    assert set(pages.rows(REFERENCE, "## Annotations that a pod may have")) == set(contract.REQUEST_KEYS)
    assert set(pages.rows(REFERENCE, "## Annotations that a namespace may have")) == set(share_range.KEYS)
    written = {*contract.RESULT_KEYS, contract.OWN_LABELS}
    assert set(pages.rows(REFERENCE, "## Annotations that gpushare writes")) == written


def test_every_label_and_resource_is_in_the_table() -> None:
    assert set(pages.rows(REFERENCE, "## Labels, gates, resources")) == LABELS | RESOURCES


def test_every_variable_of_a_container_is_in_the_table() -> None:
    assert set(pages.rows(REFERENCE, "## Environment of a container with a share")) == VARIABLES


def test_the_readme_lists_every_pod_annotation() -> None:
    short = {key.removeprefix(contract.PREFIX) for key in contract.REQUEST_KEYS}
    assert short <= set(pages.rows("README.md", "## What a pod can ask for"))


def test_every_event_is_in_the_table() -> None:
    assert set(pages.rows(OPERATIONS, "## Events")) == EVENTS


def _says_a_reason(statement: ast.AST) -> bool:
    """Whether the statement creates a condition or assigns to `reason`."""
    if isinstance(statement, ast.Call):
        return isinstance(statement.func, ast.Name) and statement.func.id == "Condition"
    return isinstance(statement, ast.Assign) and "reason" in map(ast.unparse, statement.targets)


def test_every_condition_is_in_the_table_with_all_its_reasons() -> None:
    rows = pages.rows(OPERATIONS, "## GPUNode conditions")
    assert set(rows) == CONDITIONS
    reasons = {reason for cells in rows.values() for reason in re.findall(r"`([A-Z][a-z]\w+)`", cells[0])}
    sources = (
        "report/gpunode_status.py",
        "modes/transition.py",
        "audit/node_audit.py",
        "injection/decision.py",
        "denial/pod_denial.py",
    )
    written = {
        constant.value
        for source in sources
        for statement in ast.walk(ast.parse((pages.ROOT / "deviceplugin" / source).read_text()))
        if _says_a_reason(statement)
        for constant in ast.walk(statement)
        if isinstance(constant, ast.Constant)
        and isinstance(constant.value, str)
        and re.fullmatch("[A-Z][a-zA-Z]+", constant.value)
    }
    written |= {value for name, value in vars(contract).items() if name.startswith("REASON_")}
    assert reasons - {"False", "True", "Unknown"} == written - {"False", "True", "Unknown"}


@pytest.mark.parametrize("heading", METRICS)
def test_every_metric_is_in_the_table_with_its_type_and_labels(heading: str) -> None:
    rows = {
        name: (cells[0], tuple(part.strip() for part in cells[1].split(",") if part.strip()))
        for name, cells in pages.rows(REFERENCE, heading).items()
        if len(cells) > 2
    }
    assert rows == METRICS[heading]


def test_every_review_outcome_is_documented() -> None:
    meaning = pages.rows(REFERENCE, "## Metrics of the webhook")["gpushare_webhook_reviews_total"][2]
    assert set(re.findall(r"`(\w+)`", meaning)) == set(webhook_metrics.OUTCOMES)


def test_every_policy_is_documented_with_its_aim() -> None:
    assert {name: cells[0] for name, cells in pages.rows(REFERENCE, "## Policies").items()} == {
        name: policy.aim for name, policy in policies.POLICIES.items()
    }


def test_every_pending_reason_and_gpu_state_is_documented() -> None:
    reasons = {*filters.RULES, explanation.NODE_RULE, explanation.COUNT_RULE, *Cause}
    rows = pages.rows(REFERENCE, "## Metrics of the webhook")
    assert {name for name in rows if not name.startswith("gpushare_")} == reasons | set(PartState)


def test_alerts_use_existing_outcomes() -> None:
    text = rules.FILE.read_text()
    asked = {word for pattern in re.findall(r'outcome=~?"([^"]+)"', text) for word in re.split(r"[|\\]+", pattern)}
    assert asked
    assert asked <= set(webhook_metrics.OUTCOMES)


@pytest.mark.parametrize("daemon", ["webhook", "deviceplugin"])
def test_every_setting_is_in_the_table(daemon: str) -> None:
    heading = {"webhook": "## Settings of the webhook", "deviceplugin": "## Settings of the agent"}[daemon]
    theirs = {option for flag in flags.FLAGS for option in flag.options} if daemon == "deviceplugin" else set()
    mentioned = {"--help", "--version", "--request-timeout"}
    own = {option for option in commands.options(daemon) - theirs if option.startswith("--")} - mentioned
    assert set(pages.rows(REFERENCE, heading)) == own


@pytest.mark.slow
def test_every_bench_option_and_case_is_in_the_tables() -> None:
    names = {key.partition(" ")[0] for key in pages.rows("bench/gpu/README.md", "# bench/gpu")}
    options = {option for option in commands.options("bench.gpu") if option.startswith("--")} - {"--help"}
    assert names == options | set(bench.CASES)


def test_every_listed_flag_of_nvidias_plugin_exists() -> None:
    rows = pages.rows("docs/configuration.md", "## `flags`")
    keys, cells = set(rows) - {"flags"}, [cell for row in rows.values() for cell in row[:2]]
    assert {key.rpartition(".")[2] for key in keys} <= {flag.key.rpartition(".")[2] for flag in flags.FLAGS}
    options = {option for flag in flags.FLAGS for option in flag.options}
    variables = {variable for flag in flags.FLAGS for variable in flag.variables}
    named = {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}
    assert named <= options | variables


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_pages_name_only_existing_metrics(page: Path) -> None:
    known = {name for table in METRICS.values() for name in table}
    known |= {f"{name}_bucket" for name in known}
    known |= {part for name in rules.RECORDS for part in name.split(":")}
    known |= {rule["name"]["as"] for rule in yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]}
    quoted = {name for text in pages.quoted(page) for name in re.findall(r"\bgpushare_[a-z_]+[a-z]\b", text)}
    packages = {"gpushare_webhook", "gpushare_system"}
    assert sorted(quoted - known - packages) == []


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_pages_name_only_existing_keys(page: Path) -> None:
    told = re.sub(r"^```diff\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # adds names
    text = re.sub(r"[\w.-]+\.gpushare\.io|gpushare\.io/v1alpha1", "", told).replace("~1", "/")
    named = set(re.findall(r"(?<![\w.])gpushare\.io/([a-z][a-z-]*)", text))
    assert sorted(named - {key.removeprefix(contract.PREFIX) for key in EVERY_KEY}) == []
