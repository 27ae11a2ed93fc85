"""Replicas avoid each other's nodes as long as their writes conflict."""

from __future__ import annotations

from webhook.store import avoided_nodes
from webhook.store.avoided_nodes import Contention

NODES = [f"node-{number}" for number in range(200)]


def _replica(*, leads: bool = False, salt: bytes | None = None) -> Contention:
    replica = Contention(salt)
    replica.leads = leads
    return replica


def _kept(replica: Contention, *lost: str) -> set[str]:
    """Return the nodes that a replica prefers after it has lost these."""
    for name in lost:
        replica.lost(name, now=10.0)
    is_left = replica.deprioritized(now=10.0)
    return set(NODES) if is_left is None else {name for name in NODES if not is_left(name)}


def test_no_node_is_deprioritized_without_a_lost_write() -> None:
    assert Contention().deprioritized(now=10.0) is None


def test_node_is_deprioritized_briefly_after_a_lost_write() -> None:
    replica = Contention()
    replica.lost("node-1", now=10.0)
    assert replica.deprioritized(now=10.0 + avoided_nodes.LOST_SECONDS / 2) is not None
    assert replica.deprioritized(now=10.0 + avoided_nodes.LOST_SECONDS) is None


def test_contended_node_is_deprioritized_in_either_half() -> None:
    for leads in (False, True):
        assert not _kept(_replica(leads=leads), *NODES)


def test_leader_and_follower_prefer_different_nodes_after_a_conflict() -> None:
    of_leader = next(name for name in NODES if name in _kept(_replica(leads=True), "other"))
    leaders, others = _kept(_replica(leads=True), of_leader), _kept(_replica(), of_leader)
    assert not leaders & others
    assert leaders | others == set(NODES) - {of_leader}
    assert 60 < len(leaders) < 140


def test_followers_that_conflict_each_prefer_a_random_half_of_theirs() -> None:
    theirs = sorted(_kept(_replica(), *NODES[:1]) & _kept(_replica(), *NODES[1:2]))
    kept_nodes, other = (_kept(_replica(salt=salt), theirs[0]) for salt in (b"one", b"other"))
    assert kept_nodes < set(theirs)
    assert other < set(theirs)
    assert len(kept_nodes & other) < len(kept_nodes)


def test_leader_keeps_its_half_after_any_conflict() -> None:
    both = {name: _kept(_replica(leads=True), name) for name in NODES[:20]}
    assert len(set.union(*both.values())) - min(map(len, both.values())) <= 1
