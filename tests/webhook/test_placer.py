"""One part of the placer that fails takes nothing from the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from webhook.placer import MAX_BREATH_SECONDS, Placer


class Part:
    """Stands for a part of the placer: only whether it had its turn is looked at here."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem, self.turns, self.repeated = problem, 0, 0
        self.objects: dict[str, Any] = {}
        self.has_more = False
        self.pods = self

    async def work(self, *_: object) -> float | None:
        self.turns += 1
        if self.problem is not None:
            raise self.problem
        return None

    keep = resize = open_all = work

    def listen(self, *_: object) -> None:
        """Nothing ever changes."""

    subscribe = on_change = look = listen

    def look_again(self) -> None:
        self.repeated += 1


async def test_gated_pods_have_their_turn_when_the_resizer_fails(caplog: pytest.LogCaptureFixture) -> None:
    resizer, gates = Part(KeyError("what nobody foresaw")), Part()
    books = Part()
    parts: Any = SimpleNamespace(store=Part(), books=books, gates=gates, resizer=resizer)
    placer = Placer(parts.store, parts.books, parts.gates, leads=lambda: True, resizer=parts.resizer)
    await placer.work()
    assert (resizer.turns, gates.turns, books.repeated) == (1, 1, 1)
    assert "The resizer failed" in caplog.text


@pytest.mark.slow
async def test_what_has_changed_is_looked_at_again_when_a_part_fails() -> None:
    gates, books = Part(KeyError("what nobody foresaw")), Part()
    parts: Any = SimpleNamespace(store=Part(), books=books, gates=gates)
    placer = Placer(parts.store, parts.books, parts.gates, leads=lambda: True)
    placer.wake()
    await placer.step()
    assert (gates.turns, books.repeated) == (1, 1)


async def test_a_look_that_was_slow_is_not_followed_by_as_long_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server was away for a minute; what pods have left meanwhile is given back at once, not after another."""
    now, pauses = 0.0, []

    class Slow(Part):
        async def work(self, *_: object) -> float | None:
            nonlocal now
            now += 60.0
            return None

        keep = work

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("webhook.placer.time.monotonic", lambda: now)
    monkeypatch.setattr("webhook.placer.asyncio.sleep", pause)
    parts: Any = SimpleNamespace(store=Part(), books=Slow(), gates=Part())
    placer = Placer(parts.store, parts.books, parts.gates, leads=lambda: True)
    placer.wake()
    await placer.step()
    assert pauses == [MAX_BREATH_SECONDS]
