"""The placement bench, on a cluster made up here: it does with the product's own engine what the webhook does."""

from __future__ import annotations

import pytest

from gpushare.mix import Mix
from gpushare.placement.fleet import Fleet
from tests.bench.openb_modules import own_policies, trace

NODES = [trace.Node(f"node-{number}", 96_000, 768 * 1024, 8, "A100") for number in range(10)]
HALF = trace.Pod(4000, 16_384, 1, 50, ())


@pytest.fixture
def lessons(monkeypatch: pytest.MonkeyPatch) -> list[Mix]:
    """The mixes that the engine was taught."""
    taught: list[Mix] = []
    monkeypatch.setattr(Fleet, "learn", lambda _, mix: taught.append(mix))
    return taught


def test_placement_learns_from_the_pods_that_have_come(lessons: list[Mix]) -> None:
    scheduler = own_policies.Gpushare("fragmentation", NODES)
    for _ in range(60):
        assert scheduler.place(HALF) is not None
    assert [mix.pods for mix in lessons] == [50]
