"""An arbiter in a process of its own, which a test can kill: two pods, of 30 and 70 percent of one GPU.

Usage: arbiter_process.py DIRECTORY GPU-UUID. It prints "ready" when it listens; then for each line that it reads, what
each pod holds and by how many processes, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from gpushare.allocation import GivenShare
from tests.deviceplugin.arbiter_node import ArbiterNode


async def serve(directory: Path, uuid: str) -> None:
    node = ArbiterNode(directory)
    for name, request in (("pod1", 30), ("pod2", 70)):
        node.add_pod(name, GivenShare(("main",), (uuid,), request, 100, 1 << 28))
    await node.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while await asyncio.to_thread(sys.stdin.readline):
        held = {use.tenant.pod: [sum(use.used_bytes), use.processes] for use in node.groups.uses()}
        sys.stdout.write(json.dumps(held) + "\n")
        sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
