"""How many gated pods wait, by the cause. Pure."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterable, Mapping

from gpushare.refusal import Refusal
from webhook.pods.stored_pod import Pod


def counts(told: Iterable[tuple[Pod, Refusal]]) -> Mapping[tuple[str, str], int]:
    """How many pods wait, by namespace and the word for the reason."""
    return collections.Counter((pod.ref.namespace, refusal.word) for pod, refusal in told)


def longest_seconds(pods: Iterable[Pod], *, now: float) -> float:
    """For how long the oldest of them has been there; `now` in Unix seconds. A pod without a date counts as new."""
    # Such texts sort by time, and very many pods are often of few moments.
    return max((_age_seconds(created, now) for created in {pod.created for pod in pods}), default=0.0)


def _age_seconds(created: str, now: float) -> float:
    try:
        return max(0.0, now - datetime.datetime.fromisoformat(created).timestamp())
    except ValueError:
        return 0.0
