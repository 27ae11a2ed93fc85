"""A witness: follows every version of every GPUNode by a watch, and records each that breaks a law.

A check at the end alone would miss a short violation. A witness that loses its connection continues where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from gpushare import codec, contract, ledger
from gpushare.cluster import api_client, informer, object_store


class Witness:
    """A watch of the ledger. versions: states of GPUNodes seen so far; broken: violations, as sentences."""

    def __init__(self) -> None:
        self.versions = 0
        self.broken: list[str] = []

    def see(self, change: object_store.Delta) -> None:
        if change.new is None:
            return
        self.versions += 1
        node = codec.read(change.new)
        self.broken += [*ledger.violations(node), *node.problems]


@contextlib.asynccontextmanager
async def watching(kubeconfig: Path) -> AsyncIterator[Witness]:
    """Watch the ledger, and check all that was seen at the end; raises AssertionError."""
    made = Witness()
    async with api_client.connect(str(kubeconfig), component="witness") as api:
        copy = informer.Informer(api, contract.GPUNODE_PATH)
        copy.subscribe(made.see)
        running = asyncio.create_task(copy.run())
        try:
            await asyncio.wait_for(copy.synced.wait(), 30)
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert made.broken == []
    assert made.versions > 1, "it saw nothing"
