"""An agent with two shares of one GPU, and its arbiter in its own loop, or in a process as the agent starts it.

    python -m bench.handover.agent loop|process DIRECTORY KUBECONFIG

It prints a line when the arbiter listens. From then on each line that it reads turns it: from doing nothing to listing
the pods of its node again and again, as its informer would, and back; it prints how many lists it has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from deviceplugin import node_pods
from deviceplugin.link import arbiter, arbiter_process
from gpushare.allocation import GivenShare
from gpushare.cluster import api_client
from tests.deviceplugin.arbiter.arbiter_process import PROGRAM
from tests.deviceplugin.arbiter_node import GPUS, ArbiterNode

SHARES = ("one", "two")


@contextlib.asynccontextmanager
async def in_loop(node: ArbiterNode) -> AsyncIterator[None]:
    """As it was before the arbiter had a process of its own."""
    await node.start()
    yield
    await node.stop()


@contextlib.asynccontextmanager
async def in_process(node: ArbiterNode) -> AsyncIterator[None]:
    """As it is."""
    async with arbiter_process.running(
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
    """Lists pods, one list after another."""

    def __init__(self, api: api_client.ApiClient) -> None:
        self._api = api
        self.count = 0

    async def run(self) -> None:
        while True:
            listing = await self._api.list(
                node_pods.PATH, {"fieldSelector": "spec.nodeName=node-a"}, keep=api_client.whole
            )
            kept = [node_pods.trimmed(item) for item in listing.items]
            self.count += bool(kept)


async def main(arrangement: str, directory: Path, kubeconfig: str) -> None:
    """Serve until there is nothing more to read."""
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
