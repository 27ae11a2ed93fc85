"""Metrics of the webhook and the placer, with their names and units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import prometheus_client

OUTCOMES: Final = ("placed", "gated", "denied", "kept", "planned", "translated", "ignored", "unready", "error")
RESULTS: Final = ("written", "conflict", "failed", "refused")
CHANGES: Final = ("confirmed", "released", "expired", "adopted")
# A review waits for one or two writes of the ledger: milliseconds on a healthy cluster, seconds on an overloaded one.
_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """The metrics of one process, or of one test, in a registry. Simple counters and gauges are called directly."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._reviews = self._labelled("gpushare_webhook_reviews", "Admission reviews answered.", outcome=OUTCOMES)
        self._durations = prometheus_client.Histogram(
            "gpushare_webhook_review_duration_seconds",
            "Duration of a review, including writes of the ledger.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._writes = self._labelled("gpushare_webhook_ledger_writes", "Writes of a GPUNode.", result=RESULTS)
        self._changes = self._counted("gpushare_webhook_ledger_changes", "Changes in those writes, often several.")
        self._kept = self._labelled(
            "gpushare_placer_allocations",
            "Allocations that the placer of this process confirmed, released, expired or restored.",
            change=CHANGES,
        )
        self.conflicted = self._counted("gpushare_webhook_conflicts", "Placements whose GPUs were taken meanwhile.")
        self.placed = self._counted("gpushare_placer_placed", "Gated pods that this process has placed.")
        self.replaced = self._counted("gpushare_placer_replaced", "Stuck pods that were evicted to be recreated.")
        self.preempted = self._counted(
            "gpushare_placer_preempted", "Pods that were evicted for one of higher priority."
        )
        self.resized = self._counted("gpushare_placer_resized", "Shares that were resized.")
        self._gated = self._set("gpushare_placer_gated_pods", "Pods that wait for a GPU; 0 unless this process leads.")
        self._waiting = prometheus_client.Gauge(
            "gpushare_placer_waiting_pods",
            "Pods that wait for a GPU, by namespace and reason.",
            ("namespace", "reason"),
            registry=self.registry,
        )
        self._longest = self._set(
            "gpushare_placer_longest_wait_seconds",
            "Age of the oldest pod that waits for a GPU; 0 unless this process leads.",
        )
        self.stuck = self._set(
            "gpushare_placer_stuck_pods",
            "Pods that were placed and that the scheduler cannot bind; 0 unless this process leads.",
        )
        self.resizes_waiting = self._set(
            "gpushare_placer_resizes_waiting", "Pods that wait to be resized; 0 unless this process leads."
        )
        self.demanded = self._set(
            "gpushare_placer_demanded_gpus",
            "GPUs that an autoscaler is asked for by demand pods; 0 unless this process leads.",
        )
        self.borrowed = self._set(
            "gpushare_placer_borrowed_gpus",
            "GPUs of another device plugin that take shares; 0 unless this process leads.",
        )
        self.ledger_problems = self._set(
            "gpushare_placer_ledger_problems",
            "Entries of GPUNodes that are invalid or violate the ledger's rules, as this process has last seen them.",
        )
        self.leads = self._set("gpushare_placer_leads", "Whether this process is the placer: 1 or 0.")
        self.certificate_ends = self._set(
            "gpushare_webhook_certificate_expiry_timestamp_seconds",
            "When the serving certificate expires, in Unix time.",
        )

    def reviewed(self, outcome: str, seconds: float) -> None:
        self._reviews.labels(outcome).inc()
        self._durations.observe(seconds)

    def wrote(self, result: str, *, changes: int) -> None:
        self._writes.labels(result).inc()
        if result == "written":
            self._changes(changes)

    def changed_allocations(self, change: str, count: int) -> None:
        self._kept.labels(change).inc(count)

    def waiting(self, counts: Mapping[tuple[str, str], int], *, longest_seconds: float) -> None:
        self._waiting.clear()
        for labels, count in counts.items():
            self._waiting.labels(*labels).set(count)
        self._gated(sum(counts.values()))
        self._longest(longest_seconds)

    def _labelled(self, name: str, help_text: str, **label: tuple[str, ...]) -> prometheus_client.Counter:
        counter = prometheus_client.Counter(name, help_text, tuple(label), registry=self.registry)
        for value in next(iter(label.values())):  # so that rates work from the first increment
            counter.labels(value)
        return counter

    def _counted(self, name: str, help_text: str) -> Callable[..., None]:
        return prometheus_client.Counter(name, help_text, registry=self.registry).inc

    def _set(self, name: str, help_text: str) -> Callable[[float], None]:
        return prometheus_client.Gauge(name, help_text, registry=self.registry).set
