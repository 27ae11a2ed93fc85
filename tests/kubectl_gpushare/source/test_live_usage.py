from __future__ import annotations

import pytest

from kubectl_gpushare.source import live_usage
from kubectl_gpushare.source.live_usage import Used
from tests.kubectl_gpushare import sample

LINE = 'gpushare_share_used_memory_bytes{node="n",namespace="%s",pod="%s",containers="%s",gpu="%s"} %s'


def test_shares_of_one_pod_and_of_one_gpu_are_added_up() -> None:
    lines = [LINE % ("a", "p", "main", "G1", 5), LINE % ("a", "p", "side", "G1", 7), LINE % ("a", "q", "main", "G1", 1)]
    usage = live_usage.parse({"n": "\n".join(lines)})
    assert usage.of_pod("n", "a", "p", ["G1", "G2"]) == Used(12, bound=True)
    assert usage.of_gpu("n", "G1") == Used(13, bound=True)
    assert usage.of_gpu("n", "G2") == Used(0)


def test_usage_of_a_silent_node_is_unknown() -> None:
    assert sample.used().of_gpu("gpu-10", sample.uuid("gpu-10", 0)) is None
    assert sample.used().of_pod("gpu-10", "batch", "b", [sample.uuid("gpu-10", 0)]) is None


def test_compute_is_in_per_cent() -> None:
    assert sample.used().of_gpu("gpu-1", sample.uuid("gpu-1", 0)) == Used(39 * 2**30 + 2**29, 62.0)


def test_parts_of_a_gpus_time_are_at_most_all_of_it() -> None:
    line = 'gpushare_share_used_compute_ratio{node="n",namespace="a",pod="%s",containers="main",gpu="G1"} %s'
    usage = live_usage.parse({"n": f"{line % ('p', 0.9)}\n{line % ('q', 0.6)}"})
    assert usage.of_gpu("n", "G1") == Used(0, pytest.approx(100))
    assert usage.of_pod("n", "a", "p", ["G1"]) == Used(0, pytest.approx(60))


def test_lines_that_are_not_samples_are_skipped() -> None:
    odd = ["nonsense", "up 1", LINE % ("a", "p", "main", "G1", "many"), LINE % ("a", 'p\\"x', "main", "G1", "1.5e3")]
    assert live_usage.parse({"n": "\n".join(odd)}).shares == {("a", 'p"x', "G1"): Used(1500, bound=True)}
