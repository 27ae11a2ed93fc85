"""Picks the next event: at random from a seed, or by a list of deviations from the default order."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A possible next event. `kind` is "go" (the default), "time", or the name of a fault."""

    kind: str
    label: str
    do: Callable[[], None]


class Schedule(Protocol):
    """Chooses one of at least one options; the first is the default, without a fault."""

    def pick(self, options: Sequence[Option]) -> Option: ...


class ByChance:
    """Chooses at random. rates: how often each kind is chosen, relative to 1.0 for the default."""

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
    """Follows the default order except at some steps: `turns` maps a step to one of its options of `kinds`.

    widths: how many options each step had.
    """

    def __init__(self, turns: Mapping[int, int], kinds: Container[str]) -> None:
        self._turns = turns
        self._kinds = kinds
        self.widths: list[int] = []

    def pick(self, options: Sequence[Option]) -> Option:
        allowed = [option for option in options if option.kind in self._kinds] or options
        turn = self._turns.get(len(self.widths), 0)
        self.widths.append(len(allowed))
        return allowed[min(turn, len(allowed) - 1)]
