"""Replicas keep out of each other's way for as long as they meet."""

from __future__ import annotations

from webhook.ledger import contention
from webhook.ledger.contention import Contention

NODES = [f"node-{number}" for number in range(200)]


def test_nothing_is_left_to_others_by_who_has_lost_nothing() -> None:
    assert not Contention().is_felt(now=10.0)


def test_a_lost_write_is_felt_for_a_moment() -> None:
    replica = Contention()
    replica.lost("node-1", now=10.0)
    assert replica.is_felt(now=10.0 + contention.LEFT_SECONDS / 2)
    assert not replica.is_felt(now=10.0 + contention.LEFT_SECONDS)


def test_the_node_that_was_fought_for_is_left_whichever_half_it_is_in() -> None:
    replica = Contention()
    for name in NODES:
        replica.lost(name, now=10.0)
    assert all(map(replica.is_left, NODES))


def test_it_keeps_about_a_half_and_always_the_same() -> None:
    replica = Contention()
    kept = {name for name in NODES if not replica.is_left(name)}
    assert 60 < len(kept) < 140
    assert kept == {name for name in NODES if not replica.is_left(name)}


def test_two_replicas_keep_different_halves() -> None:
    one, other = ({name for name in NODES if not Contention(salt).is_left(name)} for salt in (b"one", b"other"))
    assert 20 < len(one & other) < 80
