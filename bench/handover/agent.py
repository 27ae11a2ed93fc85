"""An agent with two shares of one GPU, with its arbiter in its own loop or in a process that the agent starts.

    python -m bench.handover.agent loop|process DIRECTORY KUBECONFIG

Prints a line when the arbiter listens. From then on each line on stdin toggles between doing nothing and listing the
node's pods repeatedly, as the agent's informer does; the answer is the number of lists so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from deviceplugin import cluster_objects
from deviceplugin.link import arbiter
from gpushare.allocation import GivenShare
from gpushare.cluster import api_client
from tests.deviceplugin.arbiter.arbiter_process import PROGRAM
from tests.deviceplugin.arbiter_node import GPUS, ArbiterNode

SHARES = ("one", "two")


@contextlib.asynccontextmanager
async def in_loop(node: ArbiterNode) -> AsyncIterator[None]:
    """Run the arbiter in the agent's loop, as before it had its own process."""
    await node.start()
    yield
    await node.stop()


@contextlib.asynccontextmanager
async def in_process(node: ArbiterNode) -> AsyncIterator[None]:
    """Run the arbiter in its own process, as deployed."""
    async with arbiter.running(
        node.socket, ledgers=node.directory / "state", proc=Path("/proc"), log_level="error", program=PROGRAM
    ) as running:
        made = arbiter.Arbiter(
            running.channel,
            lookup=node.lookup(),
            node=node.gpunode,
            tell=lambda: None,
            context_bytes=lambda _: 0,
        )
        await made.listening.wait()
        made.refresh()
        reporting = asyncio.create_task(made.run())
        yield
        reporting.cancel()
        made.close()


ARRANGEMENTS = {"loop": in_loop, "process": in_process}


class Lists:
    """A loop that lists pods, one list after another."""

    def __init__(self, api: api_client.ApiClient) -> None:
        self._api = api
        self.count = 0

    async def run(self) -> None:
        while True:
            listing = await self._api.list(
                cluster_objects.PODS_PATH, {"fieldSelector": "spec.nodeName=node-a"}, keep=api_client.whole
            )
            kept = [cluster_objects.trimmed_pod(item) for item in listing.items]
            self.count += bool(kept)


async def main(arrangement: str, directory: Path, kubeconfig: str) -> None:
    """Serve until stdin ends."""
    node = ArbiterNode(directory)
    for name in SHARES:
        node.add_pod(name, GivenShare(("main",), (GPUS[0],), 50, 100, 1 << 28))
    async with api_client.connect(kubeconfig) as api, ARRANGEMENTS[arrangement](node):
        print(flush=True)
        lists, working = Lists(api), None
        while await asyncio.to_thread(sys.stdin.readline):
            if working is None:
                working = asyncio.create_task(lists.run())
            else:
                working.cancel()
                working = None
            print(lists.count, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
