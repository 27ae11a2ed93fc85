"""Suggested sizes cover the peak plus a margin, and short observations give no suggestion."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import quantity
from kubectl_gpushare.planning import rightsizing
from kubectl_gpushare.planning.rightsizing import Advice, ReportedPeak, Rules, Size, Suggestion
from tests.gpushare.defragmentation import clusters

GIB, MIB = 2**30, 2**20
HOUR = 3600.0


def suggested(
    *peaks: ReportedPeak,
    request: int = 50,
    memory_gib: int = 40,
    gpus: str = "0",
    rules: Rules = Rules(),  # noqa: B008 - frozen
) -> Suggestion:
    """Return the suggestion for a pod with such a neighbour on each node, whose peaks are unknown."""
    asks = {"request": f"{request / 100}", "memory": f"{memory_gib}Gi"}
    placed = [(clusters.owned(f"on-{node}", **asks), f"{node}/{gpus}") for node in ("n0", "n1", "n2")]
    nodes = [view.node for view in clusters.cluster(*placed, nodes=3).views.values()]
    uuids = [f"GPU-n1-{index}" for index in gpus.split(",")]
    reported = {("default", "on-n1", ("main",), uuid): peak for uuid, peak in zip(uuids, peaks, strict=False)}
    neighbour, suggestion, other = rightsizing.suggest(nodes, reported, rules)
    assert {neighbour.advice, other.advice} == {Advice.UNKNOWN}
    return suggestion


@pytest.mark.parametrize(
    ("peak", "wanted"),
    [
        (ReportedPeak(20 * GIB, 0.3, HOUR), Size(40, 24 * GIB)),  # 0.36 of compute, 24Gi
        (ReportedPeak(GIB, 0.01, HOUR), Size(5, 1280 * MIB)),
        (ReportedPeak(1, 0.0, HOUR), Size(5, 256 * MIB)),
        (ReportedPeak(4 * GIB, None, HOUR), Size(50, 5 * GIB)),  # unmeasured compute stays
        (ReportedPeak(10 * GIB, 0.9, HOUR), Size(50, 12 * GIB)),  # use beyond the request came from idle time
        (ReportedPeak(39 * GIB, 0.5, HOUR), Size(50, 47 * GIB)),
        (ReportedPeak(79 * GIB, 0.5, HOUR), Size(50, 80 * GIB)),  # at most the whole GPU
    ],
)
def test_suggested_size_is_peak_plus_margin_rounded_up(peak: ReportedPeak, wanted: Size) -> None:
    suggestion = suggested(peak)
    assert suggestion.wanted == wanted
    assert suggestion.advice is (Advice.GROW if wanted.memory_bytes > 40 * GIB else Advice.SHRINK)


def test_share_without_request_gets_no_request() -> None:
    suggestion = suggested(ReportedPeak(GIB, 0.8, HOUR), request=0)
    assert suggestion.wanted == Size(0, 1280 * MIB)


def test_highest_peak_and_shortest_observation_count() -> None:
    suggestion = suggested(ReportedPeak(GIB, 0.1, HOUR), ReportedPeak(10 * GIB, 0.05, 2 * HOUR), gpus="0,1")
    assert suggestion.peak == ReportedPeak(10 * GIB, 0.1, HOUR)
    assert rightsizing.freed([suggestion]) == {uuid: Size(35, 28 * GIB) for uuid in suggestion.gpus}


@pytest.mark.parametrize(
    ("peaks", "advice"),
    [
        ((), Advice.UNKNOWN),
        ((ReportedPeak(GIB, 0.1, 1799.0),), Advice.TOO_SHORT),
        ((ReportedPeak(0, 0.0, HOUR),), Advice.UNKNOWN),
        ((ReportedPeak(33 * GIB, 0.5, HOUR),), Advice.FITS),
    ],
)
def test_short_observation_gives_no_suggestion(peaks: tuple[ReportedPeak, ...], advice: Advice) -> None:
    suggestion = suggested(*peaks)
    assert (suggestion.advice, suggestion.wanted, suggestion.freed) == (advice, None, Size(0, 0))
    assert suggestion.reason or advice is Advice.FITS


def test_rounding_does_not_grow_a_sufficient_share() -> None:
    """Half of a GPU's 81559 MiB is not a whole number of steps."""
    node = clusters.cluster((clusters.owned("half", request="0.5"), "n0/0")).views["n0"].node
    (entry,) = node.allocations
    half = dataclasses.replace(entry.shares[0], memory_bytes=81559 * MIB // 2)
    node = dataclasses.replace(node, allocations=(dataclasses.replace(entry, shares=(half,)),))
    for peak_gib, advice in ((33.1, Advice.FITS), (33.3, Advice.GROW)):
        peak = ReportedPeak(int(peak_gib * GIB), 0.5, HOUR)
        (suggestion,) = rightsizing.suggest([node], {("default", "half", ("main",), "GPU-n0-0"): peak}, Rules())
        assert suggestion.advice is advice


@pytest.mark.parametrize("other", [(), (ReportedPeak(None, None, HOUR),)], ids=["no metric", "no memory"])
def test_unobserved_gpu_gives_no_reason_to_shrink(other: tuple[ReportedPeak, ...]) -> None:
    suggestion = suggested(ReportedPeak(2 * GIB, 0.1, HOUR), *other, gpus="0,1")
    assert (suggestion.advice, suggestion.wanted) == (Advice.UNKNOWN, None)
    assert suggestion.reason == "no process of it was seen on some of its GPUs"


def test_unmeasured_compute_stays() -> None:
    suggestion = suggested(ReportedPeak(2 * GIB, 0.1, HOUR), ReportedPeak(2 * GIB, None, HOUR), gpus="0,1")
    assert suggestion.wanted == Size(50, 2560 * MIB)
    assert suggestion.reason


def test_margin_and_observation_time_are_options() -> None:
    suggestion = suggested(ReportedPeak(10 * GIB, 0.1, 60.0), rules=Rules(margin=1.0, min_observed_seconds=60.0))
    assert suggestion.wanted == Size(20, 20 * GIB)


@pytest.mark.slow
@given(
    peak_bytes=st.integers(1, 80 * GIB),
    ratio=st.floats(0, 1),
    margin=st.floats(0, 2),
    request=st.integers(1, 100),
    memory_gib=st.integers(1, 80),
)
def test_suggestion_is_never_below_the_peak(
    peak_bytes: int, ratio: float, margin: float, request: int, memory_gib: int
) -> None:
    suggestion = suggested(
        ReportedPeak(peak_bytes, ratio, HOUR), request=request, memory_gib=memory_gib, rules=Rules(margin)
    )
    wanted = suggestion.wanted or suggestion.held
    assert wanted.memory_bytes >= min(peak_bytes * (1 + margin), 80 * GIB) - 1
    assert wanted.request_percent <= request
    assert wanted.request_percent >= min(request, math.floor(ratio * 100))
    assert quantity.parse_bytes(str(wanted.memory_bytes)) == wanted.memory_bytes
