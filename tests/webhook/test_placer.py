"""A controller that fails does not stop the others, and the next round handles the same nodes again."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders
from webhook.controllers.touched_nodes import TouchedNodes
from webhook.placer import MAX_PAUSE_SECONDS, Placer


class Controller:
    """Stands for a controller: the tests only check whether it had its turn."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem, self.turns = problem, 0
        self.unconfirmed: frozenset[str] = frozenset()

    async def reconcile(self, *_: object) -> float | None:
        self.turns += 1
        if self.problem is not None:
            raise self.problem
        return None


class Store:
    """Stands for a store with one GPUNode, in which nothing ever changes."""

    def __init__(self) -> None:
        self.nodes = [builders.node("node-a")]
        self.objects: dict[str, Any] = {}
        self.pods = self

    def stored(self) -> list[Any]:
        return self.nodes

    def listen(self, *_: object) -> None:
        """Drop the listener."""

    subscribe = on_change = listen


def placer(touched: TouchedNodes, allocations: Any, scheduler: Any, resizer: Any = None) -> Placer:
    store: Any = Store()
    return Placer(store, touched, allocations, scheduler, leads=lambda: True, resizer=resizer)


def names(touched: TouchedNodes, made: Placer) -> frozenset[str]:
    """Return the nodes of the next round."""
    return touched.collect(made.store.stored()).names


async def test_gated_pods_get_their_turn_when_the_resizer_fails(caplog: pytest.LogCaptureFixture) -> None:
    resizer, scheduler, touched = Controller(KeyError("unexpected")), Controller(), TouchedNodes()
    made = placer(touched, Controller(), scheduler, resizer)
    await made.reconcile()
    assert (resizer.turns, scheduler.turns) == (1, 1)
    assert names(touched, made) == {"node-a"}
    assert "The resizer failed" in caplog.text


@pytest.mark.slow
async def test_nodes_of_a_failed_round_are_handled_again() -> None:
    scheduler, touched = Controller(KeyError("unexpected")), TouchedNodes()
    made = placer(touched, Controller(), scheduler)
    made.wake()
    await made.step()
    assert scheduler.turns == 1
    assert names(touched, made) == {"node-a"}
    assert names(touched, made) == frozenset()


async def test_pause_after_a_slow_round_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a round in which the API server did not answer for a minute, ended pods are released soon."""
    now, pauses = 0.0, []

    class Slow(Controller):
        async def reconcile(self, *_: object) -> float | None:
            nonlocal now
            now += 60.0
            return None

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("webhook.placer.time.monotonic", lambda: now)
    monkeypatch.setattr("webhook.placer.asyncio.sleep", pause)
    made = placer(TouchedNodes(), Slow(), Controller())
    made.wake()
    await made.step()
    assert pauses == [MAX_PAUSE_SECONDS]
