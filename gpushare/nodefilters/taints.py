"""Taints and tolerations (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).

The operators `Lt` and `Gt` tolerate nothing here: they are an alpha feature of Kubernetes 1.36, off by default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
NO_SCHEDULE: Final = "NoSchedule"
REPELLING: Final = (NO_SCHEDULE, "NoExecute")  # the effects that keep pods away


@dataclasses.dataclass(frozen=True, slots=True)
class Taint:
    """A taint. `phrase`: the reason to print instead, such as "is cordoned", of a taint that the Node does not have."""

    key: str
    value: str
    effect: str
    phrase: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclasses.dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration. An empty `key` or `effect` stands for any."""

    key: str
    operator: str
    value: str
    effect: str


def of_effect(declared: Iterable[Mapping[str, Any]] | None, *effects: str) -> tuple[Taint, ...]:
    """Read the taints of a Node that have one of these effects."""
    return tuple(
        Taint(str(taint.get("key", "")), str(taint.get("value") or ""), str(taint.get("effect", "")))
        for taint in declared or ()
        if taint.get("effect") in effects
    )


def tolerations(declared: Iterable[Mapping[str, Any]] | None) -> tuple[Toleration, ...]:
    """Read the tolerations of a pod."""
    return tuple(
        Toleration(*(str(toleration.get(field) or "") for field in ("key", "operator", "value", "effect")))
        for toleration in declared or ()
    )


class Tolerated:
    """A set of tolerations, indexed: a check costs the same however many there are."""

    def __init__(self, several: Iterable[Toleration]) -> None:
        self._exists: set[tuple[str, str]] = set()  # key, effect
        self._equal: set[tuple[str, str, str]] = set()  # key, effect, value
        for toleration in several:
            if toleration.operator == "Exists":
                self._exists.add((toleration.key, toleration.effect))
            elif toleration.operator in {"", "Equal"}:
                self._equal.add((toleration.key, toleration.effect, toleration.value))

    def first_untolerated(self, taints: Iterable[Taint]) -> Taint | None:
        """Return the first taint that is not tolerated."""
        for taint in taints:
            scopes = ((taint.key, taint.effect), (taint.key, ""), ("", taint.effect), ("", ""))
            if self._exists.isdisjoint(scopes) and self._equal.isdisjoint([(*scope, taint.value) for scope in scopes]):
                return taint
        return None
