"""No placement leaves less unallocated than the bound says."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.openb_modules import bound, trace

pytestmark = pytest.mark.slow

Node, Pod = trace.Node, trace.Pod

NODES = [Node("a", 8000, 8192, 2, "A10"), Node("b", 4000, 8192, 1, "T4")]
PODS = st.lists(
    st.builds(
        Pod,
        st.sampled_from([1000, 4000]),
        st.just(1024),
        st.just(1),
        st.sampled_from([20, 50, 81, 100]),
        st.sampled_from([(), ("T4",)]),
    ),
    min_size=1,
    max_size=5,
)
SLOTS = (0, 0, 1)  # the node of each GPU


def least_by_trying(pods: list[Pod]) -> float:
    """Of all placements of any of these pods."""
    best = 0
    for where in itertools.product((None, 0, 1, 2), repeat=len(pods)):
        used, cpu = [0, 0, 0], [0, 0]
        for pod, gpu in zip(pods, where, strict=True):
            if gpu is not None:
                used[gpu] += pod.percent
                cpu[SLOTS[gpu]] += pod.cpu_milli if not pod.models or NODES[SLOTS[gpu]].model in pod.models else 10**6
        if max(used) <= 100 and all(asked <= node.cpu_milli for asked, node in zip(cpu, NODES, strict=True)):
            best = max(best, sum(used))
    return 100 - best / 3


@given(PODS)
@settings(max_examples=15, deadline=None)
def test_no_placement_leaves_less(pods: list[Pod]) -> None:
    assert bound.least_unallocated(NODES, [], pods, steps=120) <= least_by_trying(pods) + 1e-6


def test_what_goes_beside_nobody_is_left() -> None:
    pods = [Pod(1000, 1024, 1, 81, ())] * 3
    assert abs(bound.least_unallocated(NODES, pods, [Pod(1000, 1024, 1, 47, ())], steps=500) - 19) < 0.1


def test_cpu_that_others_need_counts() -> None:
    there = [Pod(8000, 1024, 0, 0, ())]
    assert bound.least_unallocated(NODES, there, [Pod(4000, 1024, 1, 100, ())] * 3, steps=500) > 66
