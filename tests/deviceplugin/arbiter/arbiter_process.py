"""The agent's end of the channel, and a real arbiter: two pods, with 30 and 70 percent of one GPU.

Usage: arbiter_process.py DIRECTORY GPU-UUID. Prints the arbiter's pid once it listens. Then, for each line of input,
prints the held bytes and the number of processes of each pod, as JSON. A test can kill or stop either process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from deviceplugin.link import arbiter
from gpushare.allocation import GivenShare
from tests.deviceplugin.arbiter_node import ArbiterNode

PROGRAM = ("-m", "tests.deviceplugin.arbiter.by_environment")


async def serve(directory: Path, uuid: str) -> None:
    node = ArbiterNode(directory)
    for name, request in (("pod1", 30), ("pod2", 70)):
        node.add_pod(name, GivenShare(("main",), (uuid,), request, 100, 1 << 28))
    async with arbiter.running(
        node.socket, ledgers=directory / "state", proc=Path("/proc"), log_level="info", program=PROGRAM
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
        sys.stdout.write(f"{running.pid}\n")
        sys.stdout.flush()
        while await asyncio.to_thread(sys.stdin.readline):
            await made.report()
            held = {use.tenant.pod: [sum(use.used_bytes), use.processes] for use in made.shares.uses()}
            sys.stdout.write(json.dumps(held) + "\n")
            sys.stdout.flush()
        made.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
