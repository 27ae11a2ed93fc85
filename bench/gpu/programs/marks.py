"""Compute rate and latencies of a workload from the completion times of its pieces."""

from __future__ import annotations

from collections.abc import Sequence


def figures(marks: Sequence[float], at: float, begin: float, end: float, amount: int) -> dict[str, float]:
    """Return the figures of a workload that began at `at` and counts from `begin` to `end`; one mark a piece.

    rate: units a second, between the first and the last mark in that time; p50_ms, p99_ms, longest_ms: from mark to
    mark; longest_at: when the longest began. A piece delayed beyond `end` counts until it was done.
    """
    first, last = window(marks, begin, end)
    moments = [at, *marks] if last == first else list(marks)  # a single piece counts from the start
    last += last == first
    gaps = sorted((moments[number + 1] - moments[number], moments[number]) for number in range(first, last))
    p50, p99 = (1000 * gaps[min(len(gaps) - 1, int(part * len(gaps)))][0] for part in (0.5, 0.99))
    lasted = moments[last] - moments[first]
    return {
        "rate": len(gaps) * amount / lasted,
        "seconds": lasted,
        "pieces": len(gaps),
        "p50_ms": p50,
        "p99_ms": p99,
        "longest_ms": 1000 * gaps[-1][0],
        "longest_at": gaps[-1][1],
    }


def window(marks: Sequence[float], begin: float, end: float) -> tuple[int, int]:
    """Return the indices of the first and last mark that count."""
    first = next((number for number, moment in enumerate(marks) if moment >= begin), 0)
    first = min(first, max(0, len(marks) - 2))
    last = max((number for number, moment in enumerate(marks) if moment <= end), default=0)
    return first, min(max(last, first + 1), len(marks) - 1)
