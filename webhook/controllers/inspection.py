"""Inspection: what in the ledger is invalid, or breaks its rules, is said: it can only have been edited by hand.

What an entry that is invalid may hold is given to nobody (see `gpushare.codec`), nor is what is over-committed.
"""

from __future__ import annotations

import logging
from typing import Final

from gpushare import contract, ledger
from gpushare.cluster import events
from gpushare.gpunode import GpuNode
from webhook import event_loop
from webhook.metrics import Metrics
from webhook.store.api_store import ApiStore

logger = logging.getLogger(__name__)

NODES_AT_ONCE: Final = 100  # some milliseconds


class Inspection:
    """Looks at every GPUNode that has changed since the last look."""

    def __init__(self, ledger_now: ApiStore, recorder: events.Recorder, measures: Metrics) -> None:
        self._store = ledger_now
        self._recorder = recorder
        self._metrics = measures
        self._seen: dict[str, tuple[GpuNode, tuple[str, ...]]] = {}

    async def look(self) -> None:
        """Tell what is new; count all there is."""
        before, self._seen = self._seen, {}
        looked = 0
        for node in self._store.stored():
            known, sentences = before.get(node.name, (None, ()))
            if known is not node:
                looked += 1
                if looked % NODES_AT_ONCE == 0:
                    await event_loop.let_others_run()
                problems = (*node.problems, *ledger.violations(node))
                for sentence in problems:
                    if sentence not in sentences:
                        self._tell(node.name, sentence)
                sentences = problems
            self._seen[node.name] = node, sentences
        self._metrics.ledger_problems(sum(len(sentences) for _, sentences in self._seen.values()))

    def _tell(self, name: str, sentence: str) -> None:
        logger.error("Something in the ledger is wrong", extra={"node": name, "err": sentence})
        regarding = self._store.document(name)
        if regarding is not None:
            self._recorder.record(regarding, contract.EVENT_LEDGER, sentence, type="Warning", action="Inspect")
