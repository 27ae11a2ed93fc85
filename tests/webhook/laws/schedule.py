"""Picks the next event: at random from a seed, or by a list of deviations from the default order."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """Something that can happen next. `kind` is "go" (what would happen anyway), "time", or the name of a fault."""

    kind: str
    label: str
    do: Callable[[], None]


class Schedule(Protocol):
    """Chooses one of the options, of which there is at least one; the first is what happens when nothing goes wrong."""

    def pick(self, options: Sequence[Option]) -> Option: ...


class ByChance:
    """rates: how often each kind is chosen, against 1.0 for what would happen anyway."""

    def __init__(self, seed: int, rates: Mapping[str, float]) -> None:
        self._random = random.Random(seed)
        self._rates = rates

    def pick(self, options: Sequence[Option]) -> Option:
        by_kind: dict[str, list[Option]] = {}
        for option in options:
            by_kind.setdefault(option.kind, []).append(option)
        weights = [1.0 if kind == "go" else self._rates.get(kind, 0.0) for kind in by_kind]
        if not any(weights):
            return options[0]
        (kind,) = self._random.choices(list(by_kind), weights)
        # One of all that are on their way: no order is kept between them, as between connections.
        return self._random.choice(by_kind[kind])


class Deviating:
    """The default order, but for some steps: `turns` is step -> which of the options of `kinds`. `widths`: how many there were."""

    def __init__(self, turns: Mapping[int, int], kinds: Container[str]) -> None:
        self._turns = turns
        self._kinds = kinds
        self.widths: list[int] = []

    def pick(self, options: Sequence[Option]) -> Option:
        allowed = [option for option in options if option.kind in self._kinds] or options
        turn = self._turns.get(len(self.widths), 0)
        self.widths.append(len(allowed))
        return allowed[min(turn, len(allowed) - 1)]
