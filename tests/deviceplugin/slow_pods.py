"""Runs the agent with an API server that lists the pods only once a file, the first argument, exists."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from deviceplugin import __main__, agent, agent_parts, cluster_objects
from gpushare.cluster import informer

LISTED = Path(sys.argv.pop(1))


class LateInformer(informer.Informer):
    """An informer whose first list of pods is late."""

    async def step(self) -> float:
        if self._path == cluster_objects.PODS_PATH and not self.synced.is_set():
            while not LISTED.exists():  # noqa: ASYNC110, ASYNC240 - another process
                await asyncio.sleep(0.1)
        return await super().step()


if __name__ == "__main__":
    agent.SYNC_SECONDS = agent_parts.AUDITED_SECONDS = 0.5  # type: ignore[misc]
    informer.Informer = LateInformer  # type: ignore[misc]
    sys.exit(__main__.main())
