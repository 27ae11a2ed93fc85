"""How often waiting pods are told why: at once at first, ever less often after that, and never all at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpushare import contract
from tests import builders
from webhook.placer import telling


class Heard:
    """Stands for the API server and the recorder: only the pace is looked at here."""

    def __init__(self) -> None:
        self.patches: list[str] = []
        self.events = 0

    async def patch(self, _path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.patches.append(body["metadata"]["annotations"][contract.REASON])
        return {}

    def record(self, *_: Any, **__: Any) -> None:
        self.events += 1


def waiting(number: int, reason: str = "") -> dict[str, Any]:
    made = builders.pod(f"pod-{number}", request="0.5", **({"reason": reason} if reason else {}))
    made["metadata"]["uid"] = f"u-{number}"
    return made


def made() -> tuple[telling.Telling, Heard, list[float]]:
    heard, now = Heard(), [1000.0]
    return telling.Telling(heard, heard, clock=lambda: now[0]), heard, now  # type: ignore[arg-type]


async def test_what_the_webhook_wrote_is_not_written_again() -> None:
    teller, heard, _ = made()
    assert await teller.tell([(waiting(0, "full"), "full")]) is None
    assert (heard.patches, heard.events) == ([], 1)
    assert await teller.tell([(waiting(0, "full"), "full")]) is None
    assert (heard.patches, heard.events) == ([], 1)


async def test_changes_are_told_ever_less_often() -> None:
    teller, heard, now = made()
    started, told = now[0], []
    for second in range(4000):
        now[0] = started + second
        before = len(heard.patches)
        await teller.tell([(waiting(0), f"number {second}")])
        told += [second] * (len(heard.patches) - before)
    assert told == [0, 15, 45, 105, 225, 465, 945, 1845, 2745, 3645]


async def test_a_reason_that_stays_is_told_in_the_end() -> None:
    teller, heard, now = made()
    await teller.tell([(waiting(0), "one")])
    now[0] += 1
    assert await teller.tell([(waiting(0), "two")]) == 14.0
    now[0] += 14
    assert await teller.tell([(waiting(0), "two")]) is None
    assert heard.patches == ["one", "two"]


async def test_of_many_only_so_many_are_told_a_second() -> None:
    teller, heard, now = made()
    started = now[0]
    sentences = [(waiting(number), "full") for number in range(200)]
    while (again := await teller.tell(sentences)) is not None:
        now[0] += again
    assert len(heard.patches) == 200
    assert now[0] - started >= 200 / telling.MOST_AT_ONCE * telling.ROUND_SECONDS - telling.ROUND_SECONDS
