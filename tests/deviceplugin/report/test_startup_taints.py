"""The start-up taint: removed with a patch that leaves all other taints alone."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis
import jsonpatch
from hypothesis import strategies as st

from deviceplugin.report import node_writers
from gpushare import contract

KEYS = st.sampled_from(["team", "node.kubernetes.io/not-ready", *contract.STARTUP_TAINTS])
TAINTS = st.lists(st.fixed_dictionaries({"key": KEYS, "effect": st.sampled_from(["NoSchedule", "NoExecute"])}))


@hypothesis.given(TAINTS)
def test_patch_removes_all_startup_taints_and_no_other(taints: list[dict[str, Any]]) -> None:
    body = node_writers.taint_patch(taints)
    node = {"spec": {"taints": copy.deepcopy(taints)}}
    after = node if body is None else jsonpatch.apply_patch(node, body)
    assert after["spec"]["taints"] == [taint for taint in taints if taint["key"] not in contract.STARTUP_TAINTS]
    assert (body is None) == (after["spec"]["taints"] == taints)


def test_the_taint_stays_until_the_node_offers_all_resources_that_it_will_have() -> None:
    advertised = {contract.RESOURCE_PERCENT: ("a",), "nvidia.com/gpu": ()}
    allocatable = {contract.RESOURCE_PERCENT: 100, contract.RESOURCE_MEMORY: 2**30, contract.RESOURCE_IDLE: 0}
    wanted = {contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY}
    assert node_writers.resources(advertised, allocatable) == wanted
    assert node_writers.resources({}, {}) == frozenset()
