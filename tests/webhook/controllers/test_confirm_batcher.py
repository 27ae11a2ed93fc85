"""Confirmations of one node wait for each other, but not for long."""

from __future__ import annotations

from gpushare.allocation import PodRef
from webhook.controllers import due_changes

POD = PodRef("default", "trainer", "u1")
LATER = due_changes.QUIET_SECONDS / 2


def test_a_single_confirmation_is_written_after_a_quiet_moment() -> None:
    batcher = due_changes.ConfirmBatcher()
    due = 10.0 + due_changes.QUIET_SECONDS
    assert batcher.due({"node-a": {"a1": POD}}, now=10.0) == ({}, due)
    assert batcher.due({"node-a": {"a1": POD}}, now=due) == ({"node-a": {"a1": POD}}, None)


def test_another_confirmation_for_the_node_delays_both() -> None:
    batcher = due_changes.ConfirmBatcher()
    batcher.due({"node-a": {"a1": POD}}, now=10.0)
    both = {"node-a": {"a1": POD, "a2": POD}}
    due = 10.0 + LATER + due_changes.QUIET_SECONDS
    assert batcher.due(both, now=10.0 + LATER) == ({}, due)
    assert batcher.due(both, now=due)[0] == both


def test_endless_burst_is_written_after_the_longest_delay() -> None:
    batcher, pods, now = due_changes.ConfirmBatcher(), {}, 10.0
    while now < 10.0 + due_changes.MAX_DELAY_SECONDS:
        pods[f"a{now}"] = POD
        assert batcher.due({"node-a": dict(pods)}, now=now)[0] == {}
        now += 0.125
    assert batcher.due({"node-a": dict(pods)}, now=now)[0] == {"node-a": pods}


def test_nodes_do_not_wait_for_each_other() -> None:
    batcher = due_changes.ConfirmBatcher()
    batcher.due({"node-a": {"a1": POD}}, now=10.0)
    due = 10.0 + due_changes.QUIET_SECONDS
    confirmations, again = batcher.due({"node-a": {"a1": POD}, "node-b": {"b1": POD}}, now=due)
    assert confirmations == {"node-a": {"a1": POD}}
    assert again == due + due_changes.QUIET_SECONDS


def test_deleted_pod_is_confirmed_at_once() -> None:
    batcher = due_changes.ConfirmBatcher()
    batcher.due({"node-a": {"a1": POD}}, now=10.0)
    assert batcher.due({}, now=10.0 + LATER) == ({"node-a": {"a1": POD}}, None)
    assert batcher.due({}, now=10.0 + LATER) == ({}, None)
