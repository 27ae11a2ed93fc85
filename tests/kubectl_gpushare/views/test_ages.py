from __future__ import annotations

import pytest

from kubectl_gpushare.views import as_kubectl

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.9, "0s"),
        (119, "119s"),
        (2 * MINUTE, "2m"),
        (5 * MINUTE + 30, "5m30s"),
        (10 * MINUTE + 30, "10m"),
        (179 * MINUTE, "179m"),
        (3 * HOUR + 12 * MINUTE, "3h12m"),
        (8 * HOUR + 12 * MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (2 * DAY + 5 * HOUR, "2d5h"),
        (8 * DAY + 5 * HOUR, "8d"),
        (729 * DAY, "729d"),
        (2 * 365 * DAY + DAY, "2y1d"),
        (9 * 365 * DAY, "9y"),
    ],
)
def test_age_is_written_as_by_kubectl(seconds: float, text: str) -> None:
    assert as_kubectl.age(seconds) == text


@pytest.mark.parametrize("moment", ["", "yesterday", "2026-13-01T00:00:00Z"])
def test_invalid_time_has_no_age(moment: str) -> None:
    assert as_kubectl.since(moment, now=0.0) == ""


def test_api_times_are_read() -> None:
    assert as_kubectl.since("1970-01-01T00:00:00Z", now=61.0) == "61s"
    assert as_kubectl.since("1970-01-01T00:00:00.500000Z", now=61.0) == "60s"
