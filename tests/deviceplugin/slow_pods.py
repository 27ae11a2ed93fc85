"""The agent of an API server that lists the pods later than anybody waits for them."""

from __future__ import annotations

import asyncio
import sys

from deviceplugin import __main__, agent, node_pods
from gpushare.cluster import informer

LATE_SECONDS = 6.0


class LateInformer(informer.Informer):
    """Late with the first list of pods alone."""

    async def step(self) -> float:
        if self._path == node_pods.PATH and not self.synced.is_set():
            await asyncio.sleep(LATE_SECONDS)
        return await super().step()


if __name__ == "__main__":
    agent.KNOWN_SECONDS = agent.AUDITED_SECONDS = 0.5  # type: ignore[misc]
    informer.Informer = LateInformer  # type: ignore[misc]
    sys.exit(__main__.main())
