"""An arbiter of the release that Python finds: two pods, with 30 and 70 percent of one GPU, and 64 MiB each.

Usage: arbiter_process.py DIRECTORY GPU-UUID [ISOLATION], which only this release knows. It prints its release once it listens. For each input line, `POD BYTES`,
it resizes the pod's memory, and prints what each pod holds and by how many processes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import gpushare
from gpushare import allocation
from gpushare.allocation import GivenShare
from tests.deviceplugin.arbiter_node import ArbiterNode

MIB = 1 << 20


async def serve(directory: Path, uuid: str, isolation: str = "") -> None:
    node = ArbiterNode(directory)
    kind: Any = {"isolation": allocation.Isolation(isolation)} if isolation else {}
    for name, request in (("pod1", 30), ("pod2", 70)):
        node.add_pod(name, GivenShare(("main",), (uuid,), request, 100, 64 * MIB), **kind)
    await node.start()
    sys.stdout.write(f"{gpushare.__version__}\n")
    sys.stdout.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        pod, memory_bytes = line.split()
        node.change(pod, memory_bytes=int(memory_bytes))
        held = {use.tenant.pod: [sum(use.used_bytes), use.processes] for use in node.groups.uses()}
        sys.stdout.write(json.dumps(held) + "\n")
        sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), *sys.argv[2:]))
