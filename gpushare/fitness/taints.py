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
_REPELLING: Final = frozenset({NO_SCHEDULE, "NoExecute"})  # `PreferNoSchedule` is a wish


@dataclasses.dataclass(frozen=True, slots=True)
class Taint:
    """`told`: how to say it, for one that stands for something people know by another word."""

    key: str
    value: str
    effect: str
    told: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclasses.dataclass(frozen=True, slots=True)
class Toleration:
    """Empty `key` and `effect` stand for any."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """Whether a pod with it may go where the taint is."""
        if self.key and self.key != taint.key:
            return False
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator in {"", "Equal"}:
            return self.value == taint.value
        return self.operator == "Exists"


def repelling(declared: Iterable[Mapping[str, Any]] | None) -> tuple[Taint, ...]:
    """Those that keep pods away."""
    return tuple(
        Taint(str(one.get("key", "")), str(one.get("value") or ""), str(one.get("effect", "")))
        for one in declared or ()
        if one.get("effect") in _REPELLING
    )


def tolerations(declared: Iterable[Mapping[str, Any]] | None) -> tuple[Toleration, ...]:
    """Those of a pod."""
    return tuple(
        Toleration(*(str(one.get(field) or "") for field in ("key", "operator", "value", "effect")))
        for one in declared or ()
    )


def untolerated(taints: Iterable[Taint], tolerated: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that none of the tolerations covers."""
    for taint in taints:
        for one in tolerated:
            if one.tolerates(taint):
                break
        else:
            return taint
    return None


def declared(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Only those that are written in the Node, without those that stand for something else (a cordon)."""
    return tuple(one for one in taints if not one.told)
