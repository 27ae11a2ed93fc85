"""Reservations whose pods were never seen, and the consequences for their namespace."""

from __future__ import annotations

import dataclasses

import pytest

from gpushare.allocation import Allocation, PodRef
from tests import builders
from tests.webhook.leftovers import left_bytes
from webhook.store import reservation_limits
from webhook.store.reservation_limits import UnconfirmedReservations

LIFETIME_SECONDS = 60.0


class Story:
    """A node with 32 GPUs, of which a namespace may reserve four at a time, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.named: set[str] = set()
        self.known = UnconfirmedReservations(
            lambda: self.now, self.named.__contains__, lifetime_seconds=LIFETIME_SECONDS
        )
        self.node = builders.node(gpus=32)
        self.known.update(self.node, self.node)

    def holds(self, *entries: Allocation, written: bool = True) -> None:
        after = dataclasses.replace(self.node, allocations=entries)
        self.known.update(after, after if written else self.node)
        self.node = after if written else self.node

    def lapses(self, entry: Allocation) -> None:
        """Let a reservation expire."""
        self.holds(entry)
        self.now += LIFETIME_SECONDS
        self.holds()


def reserved(identity: str = "a", *, gpus: int = 1, namespace: str = "team", **amounts: int) -> Allocation:
    uuids = [f"GPU-node-a-{number}" for number in range(gpus)]
    made = builders.allocation(identity, *uuids, reserved_until=1e9, **{"request": 100, "memory_gib": 0, **amounts})
    return dataclasses.replace(made, pod=PodRef(namespace))


def confirmed(identity: str = "a") -> Allocation:
    return dataclasses.replace(reserved(identity), pod=PodRef("team", "x", "u"), reserved_until=None)


def test_namespace_may_reserve_an_eighth_of_all_gpus() -> None:
    story = Story()
    story.holds(reserved("a", gpus=3))
    assert story.known.why_not("team") is None
    story.holds(reserved("a", gpus=3), reserved("b"), written=False)
    assert str(story.known.why_not("team")).startswith("4 GPUs are reserved for pods of this namespace")
    assert story.known.why_not("others") is None
    story.known.seen("a")
    assert story.known.why_not("team") is None


def test_all_namespaces_together_may_have_a_half() -> None:
    story = Story()
    names = [f"made-up-{number}" for number in range(5)]
    story.holds(*(reserved(name, gpus=3, namespace=name) for name in names))
    assert story.known.why_not("team") is None
    story.holds(*(reserved(name, gpus=3, namespace=name) for name in names), reserved(namespace="other"))
    assert str(story.known.why_not("team")).startswith("16 GPUs are reserved for pods of all namespaces")
    for name in names:
        story.known.seen(name)
    assert story.known.why_not("team") is None


def test_many_expired_reservations_stop_early_reservations_everywhere() -> None:
    story = Story()
    for number in range(reservation_limits.MAX_EXPIRED_TOGETHER):
        assert story.known.why_not("team") is None
        story.lapses(reserved(str(number), namespace=f"made-up-{number}"))
    assert "9 pods of several namespaces" in str(story.known.why_not("team"))
    story.now = LIFETIME_SECONDS + reservation_limits.EXPIRED_SECONDS
    assert story.known.why_not("team") is None  # the first was an hour ago


def test_memory_counts_where_it_is_the_larger_part() -> None:
    story = Story()
    story.holds(reserved(gpus=4, request=0, memory_gib=80))
    assert story.known.why_not("team") is not None


def test_small_cluster_allows_two_reserved_gpus() -> None:
    reservations = UnconfirmedReservations(lambda: 0.0)
    node = builders.node(gpus=2)
    reservations.update(dataclasses.replace(node, allocations=(reserved(),)), node)
    assert reservations.why_not("team") is None
    reservations.update(dataclasses.replace(node, allocations=(reserved(gpus=2),)), node)
    assert reservations.why_not("team") is None  # the same reservation is weighed once
    reservations.update(dataclasses.replace(node, allocations=(reserved(), reserved("b"))), node)
    assert reservations.why_not("team") is not None


def test_while_a_pod_is_overdue_no_more_is_reserved() -> None:
    story = Story()
    story.holds(reserved())
    story.now = reservation_limits.OVERDUE_SECONDS + 0.1
    assert "does not exist yet" in str(story.known.why_not("team"))
    story.holds(confirmed())
    assert story.known.why_not("team") is None


def test_namespace_with_expired_reservations_gets_none_for_an_hour() -> None:
    story = Story()
    for number in range(reservation_limits.MAX_EXPIRED):
        assert story.known.why_not("team") is None
        story.lapses(reserved(str(number)))
    assert "3 pods of this namespace were rejected after placement in the last hour" in str(story.known.why_not("team"))
    assert story.known.why_not("others") is None
    story.now = LIFETIME_SECONDS + reservation_limits.EXPIRED_SECONDS
    assert story.known.why_not("team") is None


@pytest.mark.parametrize(
    "how", ["confirmed", "seen", "seen before", "not written", "node gone", "came and went", "given back"]
)
def test_reservation_that_ends_early_does_not_count_as_expired(how: str) -> None:
    story = Story()
    for number in range(reservation_limits.MAX_EXPIRED):
        identity = str(number)
        if how == "seen before":
            story.named.add(identity)
        story.holds(reserved(identity), written=how != "not written")
        if how in {"seen", "came and went"}:
            story.known.seen(identity)
        if how == "came and went":
            story.holds(reserved(identity))
        if how == "confirmed":
            story.holds(confirmed(identity))
        if how == "node gone":
            story.known.forget("node-a")
        if how != "given back":
            story.now += LIFETIME_SECONDS
        story.holds()
    assert story.known.why_not("team") is None


def test_backfill_and_confirmed_entries_are_not_unconfirmed() -> None:
    story = Story()
    hold = dataclasses.replace(reserved("hold-1", gpus=30), pod=PodRef("team", "x", "u"))
    story.holds(hold, confirmed())
    assert story.known.why_not("team") is None


@pytest.mark.slow
def test_deleted_pods_leave_no_objects_in_memory() -> None:
    story = Story()

    def come_and_go() -> None:
        for number in range(200):
            story.holds(reserved(f"a{number}", namespace=f"a{number}"), reserved(f"b{number}", namespace=f"b{number}"))
            story.known.seen(f"a{number}")
            story.holds()

    assert left_bytes(come_and_go) < 200 * 50
