"""Which configuration the GPUs are to be by, as far as that is known now; and what is wrong with what was asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from deviceplugin.live import wishes
from gpushare import errors
from gpushare.config import selection
from gpushare.config.selection import InForce
from gpushare.modes.card import Card

logger = logging.getLogger(__name__)

_Asked = tuple[InForce, tuple[Card, ...]]


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
        self._understood: dict[_Asked, wishes.Wish | errors.ConfigError] = {}
        self.wish: wishes.Wish | None = None
        self.problem = ""

    async def choose(
        self, current: InForce | None, cards: Sequence[Card], seated: Sequence[Card] | None = None
    ) -> wishes.Wish | None:
        """The wish for these GPUs: what is asked for, or else `current`, or else the last one that was good.

        current: what the GPUs were to be by until now; None at a first start. seated: the GPUs by which `current` is
        understood, if not `cards`.
        """
        problem, wanted = "", current or selection.BUILT_IN
        if self._source.is_known:
            entries, label = self._source.entries, self._source.label
            decision = wishes.chosen(current, entries, label=label, options=self._options)
            problem, wanted = decision.problem, decision.in_force or selection.BUILT_IN
        known, self._understood = self._understood, {}
        for config in dict.fromkeys((wanted, current or selection.BUILT_IN)):
            asked = config, tuple(cards if seated is None or config != current else seated)
            # In a thread, and once: somebody else has written it, and it may be long.
            found = known[asked] if asked in known else await asyncio.to_thread(self._understand, *asked)
            self._understood[asked] = found
            if isinstance(found, wishes.Wish):
                self._take(found)
                break
            problem = problem or str(found)
        if problem and problem != self.problem:
            logger.warning("The configuration cannot be applied", extra={"err": problem})
            self._refused(problem)
        self.problem = problem
        return self.wish

    def _understand(self, config: InForce, cards: Sequence[Card]) -> wishes.Wish | errors.ConfigError:
        try:
            return wishes.understood(config, cards, self._options)
        except errors.ConfigError as error:
            return error

    def _take(self, wish: wishes.Wish) -> None:
        if self.wish is None or self.wish.config != wish.config:
            logger.info("The configuration", extra={"config": wish.config.name, "warnings": list(wish.warnings)})
        self.wish = wish
