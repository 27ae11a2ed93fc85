"""Parses /metrics, and checks Prometheus' rules for names, units and help texts (as `promtool check metrics` does).

The rules: https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import prometheus_client
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

# Units in names that are not base units.
_SMALLER_OR_LARGER = re.compile(
    r"_(milli|micro|nano|kilo|mega|giga|mi|gi|ki)?(seconds|bytes)?_?(ms|ns|us|minutes|hours|days|kb|mb|gb|bits|percent)(_|$)"
)
_UNITS = ("_seconds", "_bytes", "_ratio", "_timestamp_seconds")
# Words in a name that imply its unit.
_NEEDS = {"memory": "_bytes", "compute": "_ratio"}
_TYPES = ("counter", "gauge", "histogram", "summary")


def families(registry: prometheus_client.CollectorRegistry) -> dict[str, Metric]:
    """Return the metric families by name, as a scraper reads them."""
    text = prometheus_client.generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def faults(metrics: dict[str, Metric], *, prefix: str, labels: Collection[str]) -> Iterator[str]:
    """Return a sentence for each violated rule.

    labels: the allowed label names.
    """
    for name, metric in metrics.items():
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or not name.startswith(prefix):
            yield f"{name}: not a name in snake case that begins with {prefix}"
        if metric.type not in _TYPES:
            yield f"{name}: has no TYPE"
        if not re.fullmatch(r"[A-Z0-9].*[.]", metric.documentation):
            yield f"{name}: its HELP is not a sentence"
        if any(re.search(rf"_{kind}(_|$)", name) for kind in _TYPES):
            yield f"{name}: its type is not to be in its name"
        if _SMALLER_OR_LARGER.search(name):
            yield f"{name}: seconds, bytes and ratios are the units"
        if name.endswith("_total"):
            yield f"{name}: only a counter's samples end in _total"
        for word, unit in _NEEDS.items():
            if f"_{word}_" in f"{name}_" and not name.endswith(unit):
                yield f"{name}: it is about {word}, so it ends in {unit}"
        if sum(name.endswith(unit) for unit in _UNITS if unit != "_seconds") > 1:
            yield f"{name}: two units"
        seen = set()
        for sample in metric.samples:
            if metric.type == "counter" and not sample.name.endswith(("_total", "_created")):
                yield f"{sample.name}: a counter's samples end in _total"
            if name.endswith("_ratio") and not 0 <= sample.value <= 1:
                yield f"{name}: {sample.value} is no ratio"
            unknown = sample.labels.keys() - set(labels) - ({"le"} if metric.type == "histogram" else set())
            if unknown:
                yield f"{name}: labels {sorted(unknown)} are not of those whose values are few"
            key = (sample.name, *sorted(sample.labels.items()))
            if key in seen:
                yield f"{name}: {dict(sample.labels)} is there twice"
            seen.add(key)
