"""Reservations expire by one clock, however wrong the clocks of other replicas are."""

from __future__ import annotations

import pytest

from gpushare import ledger
from tests import builders
from webhook.controllers import due_changes
from webhook.controllers.due_changes import FirstSeen


@pytest.mark.parametrize("written", [-1e9, 0.0, 1e9])
def test_a_reservation_lapses_a_lifetime_after_it_was_first_seen(written: float) -> None:
    node = ledger.reserve(builders.node(), builders.allocation(reserved_until=written))
    seen = FirstSeen(60.0)
    for now, lapses in ((1000.0, False), (1059.0, False), (1060.0, True)):
        due = due_changes.find(seen.timed([node], now=now), [], now=now)
        assert bool(due.lapsed) == lapses
        assert due.next_expiry == (None if lapses else 1060.0)


def test_node_that_returns_counts_as_changed() -> None:
    node = ledger.reserve(builders.node(), builders.allocation(reserved_until=0.0))
    seen = FirstSeen(60.0)
    seen.timed([node], now=0.0)
    seen.timed([builders.node()], now=30.0)
    (timed,) = seen.timed([node], now=40.0)
    assert timed.allocations[0].reserved_until == 100.0


def test_permanent_share_has_no_expiry() -> None:
    node = ledger.reserve(builders.node(), builders.allocation(uid="u-1"))
    assert FirstSeen(60.0).timed([node], now=0.0) == [node]
