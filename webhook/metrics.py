"""What /metrics says of the webhook. Every name is defined here, with its unit in it."""

from __future__ import annotations

from typing import Final

import prometheus_client

OUTCOMES: Final = ("placed", "gated", "denied", "kept", "planned", "ignored", "unready", "error")
# A review waits for one or two writes of the ledger: milliseconds on a calm cluster, seconds on one in trouble.
_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """One registry's worth; every process (and test) has its own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._reviews = prometheus_client.Counter(
            "gpushare_webhook_reviews", "Admission reviews answered.", ("outcome",), registry=self.registry
        )
        self._durations = prometheus_client.Histogram(
            "gpushare_webhook_review_duration_seconds",
            "How long a review took us, writing the ledger included.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._conflicts = prometheus_client.Counter(
            "gpushare_webhook_conflicts",
            "Placements that were taken by somebody else before they were written.",
            registry=self.registry,
        )
        self._writes = prometheus_client.Counter(
            "gpushare_webhook_ledger_writes", "Writes of a GPUNode.", ("result",), registry=self.registry
        )
        self._changes = prometheus_client.Counter(
            "gpushare_webhook_ledger_changes",
            "Changes that those writes carried; several wait for one write.",
            registry=self.registry,
        )
        self._kept = prometheus_client.Counter(
            "gpushare_placer_allocations",
            "Allocations that the placer of this process confirmed, released, or let lapse.",
            ("change",),
            registry=self.registry,
        )
        self._placed = prometheus_client.Counter(
            "gpushare_placer_placed", "Gated pods that this process has placed.", registry=self.registry
        )
        self._gated = prometheus_client.Gauge(
            "gpushare_placer_gated_pods",
            "Pods that wait for a GPU; 0 unless this process leads.",
            registry=self.registry,
        )
        self._leads = prometheus_client.Gauge(
            "gpushare_placer_leads", "Whether this process is the placer: 1 or 0.", registry=self.registry
        )
        self._expiry = prometheus_client.Gauge(
            "gpushare_webhook_certificate_expiry_timestamp_seconds",
            "When the serving certificate ends, in Unix time.",
            registry=self.registry,
        )
        self._problems = prometheus_client.Gauge(
            "gpushare_placer_ledger_problems",
            "Entries of GPUNodes that make no sense or break the ledger's rules, as this process has last seen them.",
            registry=self.registry,
        )
        self._stuck = prometheus_client.Gauge(
            "gpushare_placer_stuck_pods",
            "Pods that were placed and that the scheduler cannot bind; 0 unless this process leads.",
            registry=self.registry,
        )
        self._resized = prometheus_client.Counter(
            "gpushare_placer_resized", "Shares that were given other amounts where they are.", registry=self.registry
        )
        self._resizes_waiting = prometheus_client.Gauge(
            "gpushare_placer_resizes_waiting",
            "Pods that ask for other amounts than they hold; 0 unless this process leads.",
            registry=self.registry,
        )
        self._replaced = prometheus_client.Counter(
            "gpushare_placer_replaced", "Stuck pods that were evicted to be made anew.", registry=self.registry
        )
        for outcome in OUTCOMES:  # so that a rate can be computed from the first one on
            self._reviews.labels(outcome)

    def reviewed(self, outcome: str, seconds: float) -> None:
        """A review was answered."""
        self._reviews.labels(outcome).inc()
        self._durations.observe(seconds)

    def conflicted(self) -> None:
        """A placement was taken by somebody else before it was written."""
        self._conflicts.inc()

    def wrote(self, result: str, *, changes: int) -> None:
        """A GPUNode was written, or not: `result` is written, conflict or failed."""
        self._writes.labels(result).inc()
        if result == "written":
            self._changes.inc(changes)

    def kept_books(self, change: str, count: int) -> None:
        """Allocations were confirmed, released, or expired."""
        self._kept.labels(change).inc(count)

    def placed(self) -> None:
        """A gated pod was placed."""
        self._placed.inc()

    def gated(self, count: int) -> None:
        """So many pods wait."""
        self._gated.set(count)

    def ledger_problems(self, count: int) -> None:
        """So many entries of the ledger are wrong."""
        self._problems.set(count)

    def stuck(self, count: int) -> None:
        """So many pods were placed and cannot be bound."""
        self._stuck.set(count)

    def replaced(self) -> None:
        """A stuck pod was evicted."""
        self._replaced.inc()

    def resized(self) -> None:
        """A share has other amounts now."""
        self._resized.inc()

    def resizes_waiting(self, count: int) -> None:
        """So many pods do not have what they ask for yet."""
        self._resizes_waiting.set(count)

    def leads(self, leads: bool) -> None:
        """Whether we are the placer."""
        self._leads.set(leads)

    def certificate_ends(self, at: float) -> None:
        """When the certificate that is served ends."""
        self._expiry.set(at)
