"""How often waiting pods get their reason: at once at first, then at growing intervals, and never all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_errors
from tests import builders
from webhook.controllers import pending_reasons
from webhook.pods.stored_pod import Pod


class Heard:
    """Stands for the API server and the recorder: the tests check only the rate."""

    def __init__(self) -> None:
        self.patches: list[str] = []
        self.tried: list[str] = []  # pods, by name
        self.held: dict[str, str] = {}  # by uid
        self.events = 0
        self.on_drop: list[Callable[[], None]] = []  # of each Event
        self.trouble: dict[str, api_errors.ClusterError] = {}  # by name of the pod, or "" for all

    async def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.tried.append(path.rsplit("/", 1)[1])
        if error := self.trouble.get("") or self.trouble.get(self.tried[-1]):
            raise error
        self.held[body["metadata"]["uid"]] = body["metadata"]["annotations"].get(contract.HELD, "")
        self.patches.append(body["metadata"]["annotations"][contract.REASON])
        return {}

    def record(self, *_: Any, on_drop: Callable[[], None], **__: Any) -> None:
        self.events += 1
        self.on_drop.append(on_drop)


def waiting(number: int, reason: str = "") -> Pod:
    made = builders.pod(f"pod-{number}", request="0.5", **({"reason": reason} if reason else {}))
    made["metadata"]["uid"] = f"u-{number}"
    return Pod.from_manifest(made)


def made() -> tuple[pending_reasons.PendingReasonReporter, Heard, list[float]]:
    heard, now = Heard(), [1000.0]
    return pending_reasons.PendingReasonReporter(heard, heard, clock=lambda: now[0]), heard, now  # type: ignore[arg-type]


async def test_reason_from_admission_is_not_written_again() -> None:
    teller, heard, _ = made()
    assert await teller.report([(waiting(0, "full"), "full")]) is None
    assert (heard.patches, heard.events) == ([], 1)
    assert await teller.report([(waiting(0, "full"), "full")]) is None
    assert (heard.patches, heard.events) == ([], 1)


async def test_changes_are_written_at_growing_intervals() -> None:
    teller, heard, now = made()
    started, seconds = now[0], []
    for second in range(4000):
        now[0] = started + second
        before = len(heard.patches)
        await teller.report([(waiting(0), f"number {second}")])
        seconds += [second] * (len(heard.patches) - before)
    assert seconds == [0, 3, 9, 21, 45, 93, 189, 381, 765, 1533, 2433, 3333]


async def test_stable_reason_is_written_eventually() -> None:
    teller, heard, now = made()
    await teller.report([(waiting(0), "one")])
    now[0] += 1
    assert await teller.report([(waiting(0), "two")]) == 2.0
    now[0] += 14
    assert await teller.report([(waiting(0), "two")]) is None
    assert heard.patches == ["one", "two"]


async def test_reports_per_second_are_limited() -> None:
    teller, heard, now = made()
    started = now[0]
    sentences = [(waiting(number), "full") for number in range(200)]
    while (again := await teller.report(sentences)) is not None:
        now[0] += again
    assert len(heard.patches) == 200
    assert (
        now[0] - started
        >= 200 / pending_reasons.MAX_AT_ONCE * pending_reasons.ROUND_SECONDS - pending_reasons.ROUND_SECONDS
    )


@pytest.mark.parametrize("by_webhook", [True, False])
async def test_rejected_event_is_retried_with_growing_pauses(by_webhook: bool) -> None:
    teller, heard, now = made()
    sentences = [(waiting(0, "full" if by_webhook else ""), "full")]
    await teller.report(sentences)
    for pause in (2.0, 4.0, 8.0):
        before = heard.events
        heard.on_drop[-1]()
        assert await teller.report(sentences) == pause
        assert heard.events == before
        now[0] += pause
        assert await teller.report(sentences) is None
        assert heard.events == before + 1
    assert len(heard.patches) == (0 if by_webhook else 1)


async def test_outdated_dropped_event_is_not_retried() -> None:
    teller, heard, now = made()
    await teller.report([(waiting(0), "one")])
    now[0] += 60
    await teller.report([(waiting(0), "two")])
    heard.on_drop[0]()
    now[0] += 60
    assert await teller.report([(waiting(0), "two")]) is None
    assert heard.events == 2


async def test_new_placer_spreads_its_events() -> None:
    teller, heard, now = made()
    sentences = [(waiting(number, "full"), "full") for number in range(200)]
    again: float | None = 0.0
    while again is not None:
        now[0] += again
        before = heard.events
        again = await teller.report(sentences)
        assert heard.events - before <= pending_reasons.MAX_AT_ONCE
    assert (heard.events, heard.patches) == (200, [])


AWAY = api_errors.Unavailable("etcdserver: request timed out", status=500)
DENIED = api_errors.Forbidden("the policy of the team denies it", status=403)


async def tell_until(
    teller: pending_reasons.PendingReasonReporter,
    now: list[float],
    until: float,
    sentences: Sequence[tuple[Pod, str]],
    held: str,
) -> None:
    while now[0] < until:
        again = await teller.report(sentences, {pod.ref.uid: held for pod, _ in sentences})
        if again is None:
            return
        assert again > 0
        now[0] += again


async def test_failed_write_is_retried() -> None:
    """If the ledger is lost, a pod that waits to be resized gets the share that its annotation says."""
    teller, heard, now = made()
    heard.trouble[""] = AWAY
    sentences = [(waiting(0), "is not resized yet")]
    await tell_until(teller, now, 1000.0 + 600, sentences, "40Gi")
    assert (heard.patches, heard.events) == ([], 1)
    assert len(heard.tried) <= 10
    heard.trouble.clear()
    await tell_until(teller, now, 1000.0 + 3600, sentences, "40Gi")
    assert (heard.patches, heard.held, heard.events) == (["is not resized yet"], {"u-0": "40Gi"}, 1)
    tried = len(heard.tried)
    now[0] += 3600
    assert await teller.report(sentences, {"u-0": "40Gi"}) is None
    assert len(heard.tried) == tried


async def test_unanswered_write_is_repeated() -> None:
    teller, heard, now = made()
    await teller.report([(waiting(0), "one")])
    heard.trouble[""] = AWAY
    now[0] += 60
    await teller.report([(waiting(0), "two")])
    heard.trouble.clear()
    await tell_until(teller, now, now[0] + 600, [(waiting(0), "one")], "")
    assert heard.patches[0] == heard.patches[-1] == "one"
    assert len(heard.patches) == 2


async def test_unresponsive_api_server_gets_few_reads() -> None:
    teller, heard, now = made()
    heard.trouble[""] = AWAY
    sentences = [(waiting(number), "full") for number in range(500)]
    await tell_until(teller, now, now[0] + 600, sentences, "")
    assert len(heard.tried) <= 16
    heard.trouble.clear()
    await tell_until(teller, now, now[0] + 600, sentences, "")
    assert len(heard.held) == 500


async def test_pod_that_rejects_writes_does_not_delay_others() -> None:
    teller, heard, now = made()
    heard.trouble["pod-0"] = DENIED
    sentences = [(waiting(number), "full") for number in range(3)]
    await tell_until(teller, now, now[0] + 3600, sentences, "")
    assert sorted(heard.held) == ["u-1", "u-2"]
    assert heard.events == 3
    assert 5 <= heard.tried.count("pod-0") <= 15


async def test_deleted_pod_gets_no_more_reports() -> None:
    teller, heard, now = made()
    heard.trouble["pod-0"] = api_errors.NotFound("there is no such pod", status=404)
    await tell_until(teller, now, now[0] + 3600, [(waiting(0), "full")], "")
    assert heard.tried == ["pod-0"]
