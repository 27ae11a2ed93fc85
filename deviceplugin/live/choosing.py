"""Which configuration the GPUs are to be by, as far as that is known now; and what is wrong with what was asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from deviceplugin.live import wishes
from gpushare import errors
from gpushare.config import selection
from gpushare.config.selection import InForce
from gpushare.modes.card import Card

logger = logging.getLogger(__name__)


class Source(Protocol):
    """What the cluster asks of this node."""

    @property
    def is_known(self) -> bool:
        """Whether it has said what it wants."""

    @property
    def label(self) -> str | None:
        """Which entry this node asks for."""

    @property
    def entries(self) -> Mapping[str, str]:
        """The configurations that there are."""


class Choosing:
    """Remembers the last wish that was good.

    problem: why what is asked for is not in force, as a sentence; empty when it is. refused: called with each new one.
    """

    def __init__(self, source: Source, options: wishes.Options, refused: Callable[[str], None]) -> None:
        self._source = source
        self._options = options
        self._refused = refused
        self.wish: wishes.Wish | None = None
        self.problem = ""

    def choose(self, current: InForce | None, cards: Sequence[Card]) -> wishes.Wish | None:
        """The wish for these GPUs: what is asked for, or else `current`, or else the last one that was good.

        current: what the GPUs were to be by until now; None at a first start.
        """
        problem, wanted = "", current or selection.BUILT_IN
        if self._source.is_known:
            entries, label = self._source.entries, self._source.label
            decision = wishes.chosen(current, entries, label=label, options=self._options)
            problem, wanted = decision.problem, decision.in_force or selection.BUILT_IN
        for config in dict.fromkeys((wanted, current or selection.BUILT_IN)):
            try:
                self._take(wishes.understood(config, cards, self._options))
                break
            except errors.ConfigError as error:
                problem = problem or str(error)
        if problem and problem != self.problem:
            logger.warning("The configuration cannot be applied", extra={"err": problem})
            self._refused(problem)
        self.problem = problem
        return self.wish

    def _take(self, wish: wishes.Wish) -> None:
        if self.wish is None or self.wish.config != wish.config:
            logger.info("The configuration", extra={"config": wish.config.name, "warnings": list(wish.warnings)})
        self.wish = wish
