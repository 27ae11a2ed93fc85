"""The peak usage of shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from deviceplugin.arbiter.scheduling.leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.report import share_peaks
from deviceplugin.report.share_peaks import Peak

TENANT = Tenant("u", "ml", "trainer", ("main", "side"), 0, (Grant("GPU-0", 100, 50, 100), Grant("GPU-1", 100, 50, 100)))


class Node:
    """The usage of a node's shares, with a clock that the test advances."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 0.0
        self.used: tuple[int, ...] | None = (0, 0)
        self.recent: float | None = None
        self.pods: frozenset[str] | None = frozenset({"u"})
        self.begin()

    def begin(self) -> None:
        """Start another agent."""
        self.peaks = share_peaks.Peaks(
            self.directory,
            uses=lambda: () if self.used is None else (ShareUse(TENANT, self.used, 1, (5, 0)),),
            leases=lambda: () if self.used is None else (LeaseUsage(TENANT, "GPU-0", 1.0, 1, self.recent),),
            pods=lambda: self.pods,
            clock=lambda: self.now,
        )

    def later(self, used: tuple[int, ...] | None, recent: float | None = None, *, seconds: float = 1.0) -> Peak:
        self.now += seconds
        self.used, self.recent = used, recent
        self.peaks.sample()
        return self.peaks.all[0]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_peak_includes_uncharged_memory(node: Node) -> None:
    node.later((10, 1))
    node.later((30, 2), 0.4)
    first = node.later((20, 3), 0.2)
    assert (first.memory_bytes, first.compute_ratio, first.observed_seconds) == (35, 0.4, 2.0)
    second = node.peaks.all[1]
    assert (second.gpu, second.memory_bytes, second.compute_ratio) == ("GPU-1", 3, None)


def test_only_sampled_time_with_a_process_counts(node: Node) -> None:
    node.later((10, 0))
    node.later(None)
    node.later((10, 0))
    assert node.later((10, 0), seconds=3600).observed_seconds == 1.0


def test_the_next_agent_continues_with_the_stored_peaks(node: Node) -> None:
    node.later((10, 0), 0.4)
    node.later((50, 0))
    node.peaks.save()
    node.begin()
    node.now += 100
    after = node.later((1, 0), 0.3)
    assert (after.memory_bytes, after.compute_ratio, after.observed_seconds) == (55, 0.4, 1.0)


def test_an_invalid_file_is_set_aside(node: Node) -> None:
    (node.directory / share_peaks.NAME).write_text('[{"gpu": 1, "what": 2}]')
    node.begin()
    assert node.later((1, 0)).memory_bytes == 6


def test_peaks_of_deleted_pods_are_dropped_once_the_pods_are_known(node: Node) -> None:
    node.later((10, 0))
    node.pods = None
    node.later(None)
    assert len(node.peaks.all) == 2
    node.pods = frozenset()
    node.now += 1
    node.peaks.sample()
    assert node.peaks.all == ()


def test_compute_that_was_never_measured_has_no_metric(node: Node) -> None:
    node.later((10, 0), 0.25)
    node.later((10, 0), 0.25)
    samples = {
        (sample.name, sample.labels["gpu"]): sample.value
        for metric in share_peaks.metrics(node.peaks.all, node_name="n")
        for sample in metric.samples
    }
    assert samples == {
        ("gpushare_share_peak_memory_bytes", "GPU-0"): 15,
        ("gpushare_share_peak_memory_bytes", "GPU-1"): 0,
        ("gpushare_share_peak_compute_ratio", "GPU-0"): 0.25,
        ("gpushare_share_observed_seconds", "GPU-0"): 1.0,
        ("gpushare_share_observed_seconds", "GPU-1"): 1.0,
    }
