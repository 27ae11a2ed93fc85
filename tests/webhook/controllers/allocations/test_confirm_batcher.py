"""Confirmations of one node wait for each other, but not for long."""

from __future__ import annotations

from gpushare.allocation import PodRef
from webhook.controllers.allocations import confirm_batcher

POD = PodRef("default", "trainer", "u1")
LATER = confirm_batcher.QUIET_SECONDS / 2


def test_a_single_confirmation_is_written_after_a_quiet_moment() -> None:
    waits = confirm_batcher.ConfirmBatcher()
    due = 10.0 + confirm_batcher.QUIET_SECONDS
    assert waits.ripe({"node-a": {"a1": POD}}, now=10.0) == ({}, due)
    assert waits.ripe({"node-a": {"a1": POD}}, now=due) == ({"node-a": {"a1": POD}}, None)


def test_another_one_for_the_same_node_prolongs_the_wait_of_both() -> None:
    waits = confirm_batcher.ConfirmBatcher()
    waits.ripe({"node-a": {"a1": POD}}, now=10.0)
    both = {"node-a": {"a1": POD, "a2": POD}}
    due = 10.0 + LATER + confirm_batcher.QUIET_SECONDS
    assert waits.ripe(both, now=10.0 + LATER) == ({}, due)
    assert waits.ripe(both, now=due)[0] == both


def test_a_burst_without_end_is_written_all_the_same() -> None:
    waits, pods, now = confirm_batcher.ConfirmBatcher(), {}, 10.0
    while now < 10.0 + confirm_batcher.MAX_SECONDS:
        pods[f"a{now}"] = POD
        assert waits.ripe({"node-a": dict(pods)}, now=now)[0] == {}
        now += 0.125
    assert waits.ripe({"node-a": dict(pods)}, now=now)[0] == {"node-a": pods}


def test_nodes_do_not_wait_for_each_other() -> None:
    waits = confirm_batcher.ConfirmBatcher()
    waits.ripe({"node-a": {"a1": POD}}, now=10.0)
    due = 10.0 + confirm_batcher.QUIET_SECONDS
    ripe, again = waits.ripe({"node-a": {"a1": POD}, "node-b": {"b1": POD}}, now=due)
    assert ripe == {"node-a": {"a1": POD}}
    assert again == due + confirm_batcher.QUIET_SECONDS


def test_a_pod_that_went_meanwhile_is_confirmed_at_once_so_that_its_share_is_released() -> None:
    waits = confirm_batcher.ConfirmBatcher()
    waits.ripe({"node-a": {"a1": POD}}, now=10.0)
    assert waits.ripe({}, now=10.0 + LATER) == ({"node-a": {"a1": POD}}, None)
    assert waits.ripe({}, now=10.0 + LATER) == ({}, None)
