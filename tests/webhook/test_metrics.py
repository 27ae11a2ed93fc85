"""The metrics of the webhook, as a scrape returns them."""

from __future__ import annotations

import pytest

from tests import exposition
from webhook import metrics

LABELS = ("outcome", "result", "change", "namespace", "reason")


def test_every_metric_is_as_prometheus_wants_it() -> None:
    measures = metrics.Metrics()
    measures.reviewed("placed", 0.01)
    measures.wrote("written", changes=2)
    measures.changed_allocations("confirmed", 1)
    measures.waiting({("ml", "memory"): 2}, longest_seconds=30.0)
    families = exposition.families(measures.registry)
    assert list(exposition.faults(families, prefix="gpushare_", labels=LABELS)) == []
    assert all(family.samples for family in families.values())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gpushare_webhook_reviews", metrics.OUTCOMES),
        ("gpushare_webhook_ledger_writes", metrics.RESULTS),
        ("gpushare_placer_allocations", metrics.CHANGES),
    ],
)
def test_a_scrape_has_a_line_for_every_value_from_the_beginning(name: str, values: tuple[str, ...]) -> None:
    family = exposition.families(metrics.Metrics().registry)[name]
    labels = {value for sample in family.samples if sample.name.endswith("_total") for value in sample.labels.values()}
    assert labels == set(values)


def test_reason_without_waiting_pods_has_no_series() -> None:
    measures = metrics.Metrics()
    measures.waiting({("ml", "memory"): 2, ("web", "group"): 1}, longest_seconds=30.0)
    measures.waiting({("ml", "memory"): 1}, longest_seconds=5.0)
    scrape = exposition.families(measures.registry)
    waiting = {tuple(sample.labels.values()): sample.value for sample in scrape["gpushare_placer_waiting_pods"].samples}
    assert waiting == {("ml", "memory"): 1}
    assert measures.registry.get_sample_value("gpushare_placer_gated_pods") == 1
    assert measures.registry.get_sample_value("gpushare_placer_longest_wait_seconds") == 5
