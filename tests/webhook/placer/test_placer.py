"""One part of the placer that fails takes nothing from the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from webhook.placer.placer import Placer


class Part:
    """Stands for a part of the placer: only whether it had its turn is looked at here."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem, self.turns = problem, 0
        self.objects: dict[str, Any] = {}

    async def work(self, *_: object) -> float | None:
        self.turns += 1
        if self.problem is not None:
            raise self.problem
        return None

    keep = resize = open_all = work

    def listen(self, *_: object) -> None:
        """Nothing ever changes."""

    subscribe = on_change = listen


async def test_gated_pods_have_their_turn_when_the_resizer_fails(caplog: pytest.LogCaptureFixture) -> None:
    resizer, gates = Part(KeyError("what nobody foresaw")), Part()
    parts: Any = SimpleNamespace(store=Part(), pods=Part(), books=Part(), gates=gates, resizer=resizer)
    placer = Placer(parts.store, parts.pods, parts.books, parts.gates, leads=lambda: True, resizer=parts.resizer)
    await placer.work()
    assert (resizer.turns, gates.turns) == (1, 1)
    assert "The resizer failed" in caplog.text
