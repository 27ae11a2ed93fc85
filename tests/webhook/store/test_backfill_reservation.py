"""The capacity reserved for a pod whose containers use a GPU one after the other."""

from __future__ import annotations

from gpushare import ledger
from gpushare import request as requests
from gpushare.allocation import PodRef
from tests import builders
from webhook.store import backfill_reservation
from webhook.store.backfill_reservation import ReservingPod

UUID = "GPU-node-a-0"


def test_reservation_grows_to_the_largest_step_of_the_pod() -> None:
    asked = requests.parse(builders.in_turn(warm="0.9", main="0.8"))
    other = builders.allocation("other", request=60, memory_gib=8)
    node = ledger.reserve(builders.node(gpus=1), other)
    holder = ReservingPod(PodRef("default", "large", "u"), asked, lambda _: None)
    chosen = backfill_reservation.choose(builders.views(node), [holder], new_id=lambda: "1")
    assert chosen is not None
    node = backfill_reservation.grown(ledger.reserve(node, chosen[0].allocation), {"u": asked})
    assert ledger.use(node)[UUID].request_percent == 100
    node = backfill_reservation.grown(ledger.release(node, ["other"]), {"u": asked})
    assert ledger.use(node)[UUID].request_percent == 90
    assert [share.request_percent for share in node.allocations[0].shares] == [90, 80]
    assert not ledger.violations(node)


def test_reservation_goes_where_the_largest_step_lacks_least() -> None:
    asked = requests.parse(builders.in_turn(warm="0.9", main="0.8"))
    node = ledger.reserve(builders.node(gpus=2), builders.allocation("a", request=60, memory_gib=8))
    node = ledger.reserve(node, builders.allocation("b", "GPU-node-a-1", request=30, memory_gib=8))
    holder = ReservingPod(PodRef("default", "large", "u"), asked, lambda _: None)
    chosen = backfill_reservation.choose(builders.views(node), [holder], new_id=lambda: "1")
    assert chosen is not None
    assert chosen[0].allocation.gpu_uuids == ("GPU-node-a-1",)
