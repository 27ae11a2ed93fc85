"""What a scrape of the webhook says."""

from __future__ import annotations

from tests import exposition
from webhook import metrics

LABELS = ("outcome", "result", "change")


def test_every_metric_is_as_prometheus_wants_it() -> None:
    measures = metrics.Metrics()
    measures.reviewed("placed", 0.01)
    measures.wrote("written", changes=2)
    measures.kept_books("confirmed", 1)
    found = exposition.families(measures.registry)
    assert list(exposition.faults(found, prefix="gpushare_", labels=LABELS)) == []
    assert all(one.samples for one in found.values())


def test_a_scrape_has_a_line_for_every_outcome_from_the_beginning() -> None:
    found = exposition.families(metrics.Metrics().registry)["gpushare_webhook_reviews"]
    told = {sample.labels["outcome"] for sample in found.samples if sample.name.endswith("_total")}
    assert told == set(metrics.OUTCOMES)
