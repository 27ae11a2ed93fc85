"""Taints of a node, and which of them a pod tolerates (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).

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
_REPELLING: Final = frozenset({NO_SCHEDULE, "NoExecute"})
_DISCOURAGING: Final = frozenset({"PreferNoSchedule"})


@dataclasses.dataclass(frozen=True, slots=True)
class Taint:
    """`phrase`: how to say it, for one that stands for something people know by another word."""

    key: str
    value: str
    effect: str
    phrase: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclasses.dataclass(frozen=True, slots=True)
class Toleration:
    """Empty `key` and `effect` stand for any."""

    key: str
    operator: str
    value: str
    effect: str


def repelling(declared: Iterable[Mapping[str, Any]] | None) -> tuple[Taint, ...]:
    """Those that keep pods away."""
    return _of_effect(declared, _REPELLING)


def soft(declared: Iterable[Mapping[str, Any]] | None) -> tuple[Taint, ...]:
    """Those that only make the scheduler prefer other nodes."""
    return _of_effect(declared, _DISCOURAGING)


def tolerations(declared: Iterable[Mapping[str, Any]] | None) -> tuple[Toleration, ...]:
    """The tolerations of a pod."""
    return tuple(
        Toleration(*(str(toleration.get(field) or "") for field in ("key", "operator", "value", "effect")))
        for toleration in declared or ()
    )


class Tolerated:
    """What some tolerations allow, however many they are: found and not looked for."""

    def __init__(self, several: Iterable[Toleration]) -> None:
        self._exists: set[tuple[str, str]] = set()  # key, effect
        self._equal: set[tuple[str, str, str]] = set()  # key, effect, value
        for toleration in several:
            if toleration.operator == "Exists":
                self._exists.add((toleration.key, toleration.effect))
            elif toleration.operator in {"", "Equal"}:
                self._equal.add((toleration.key, toleration.effect, toleration.value))

    def first_untolerated(self, taints: Iterable[Taint]) -> Taint | None:
        """The first taint that none of them covers."""
        for taint in taints:
            for key in (taint.key, ""):
                for effect in (taint.effect, ""):
                    if (key, effect) in self._exists or (key, effect, taint.value) in self._equal:
                        break
                else:
                    continue
                break
            else:
                return taint
        return None


def untolerated(taints: Iterable[Taint], tolerated: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that none of the tolerations covers."""
    return Tolerated(tolerated).first_untolerated(taints)


def declared(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Only those that are written in the Node, without those that stand for something else (a cordon)."""
    return tuple(taint for taint in taints if not taint.phrase)


def _of_effect(declared: Iterable[Mapping[str, Any]] | None, effects: frozenset[str]) -> tuple[Taint, ...]:
    return tuple(
        Taint(str(taint.get("key", "")), str(taint.get("value") or ""), str(taint.get("effect", "")))
        for taint in declared or ()
        if taint.get("effect") in effects
    )
