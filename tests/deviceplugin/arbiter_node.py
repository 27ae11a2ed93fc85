"""An arbiter in the test's process, with real processes as clients, and pods and GPUNode as plain values."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from deviceplugin import cluster_objects
from deviceplugin.arbiter import agent_channel, share_ledgers, share_resizing, socket_server
from deviceplugin.arbiter.agent_channel import DepartedShares
from deviceplugin.arbiter.client_connection import ShareLookup
from deviceplugin.arbiter.orphans import Orphans
from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.denial.kernel import RegisteredMap
from deviceplugin.host.kernel_process import Container
from deviceplugin.link import node_shares
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, Isolation, Labels, PodRef
from gpushare.cluster import api_errors
from gpushare.gpunode import Gpu, GpuNode, Resize
from gpushare.refusal import Refusal
from tests import builders
from tests.deviceplugin.named import container_id, identify, uid

GIB = 1 << 30
GPUS = [f"GPU-00000000-0000-0000-0000-00000000000{digit}" for digit in range(4)]
ROOT = Path(__file__).parents[2]


async def nothing_known(share: ShareLedger, slot: int, gpu: int) -> int | None:
    del share, slot, gpu
    return None


class Share:
    """A process of a share container. Each method sends a line to `share_process`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid

    async def __call__(self, *words: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write((" ".join(str(word) for word in words) + "\n").encode())
        await self.process.stdin.drain()
        return await self.answer()

    async def answer(self) -> Any:
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            line = await self.process.stdout.readline()
        assert line, f"the process ended: {self.process.returncode}"
        return json.loads(line)

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


class ArbiterNode:
    """The environment of an arbiter, which outlives it: `restarted` is the next agent. Pods are trimmed as agents do
    it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "arbiter" / contract.ARBITER_SOCKET_NAME
        self.socket.parent.mkdir(exist_ok=True)
        self.pods: list[dict[str, Any]] = []
        self.allocations: list[Allocation] = []
        self.seen_pods: list[dict[str, Any]] | None = None  # the pods in the informer, if fewer than exist
        self.seen_allocations: list[Allocation] | None = None
        self.resizes: tuple[Resize, ...] = ()  # in the GPUNode's status
        self.writes_status = True
        self.measured = True
        self.gpu_bytes = 0  # per GPU; 0 if unknown
        self.departed_seconds = agent_channel.WAIT_SECONDS
        self.context_bytes: Callable[[str], int] = lambda _: 0
        self.unclaimed_bytes = nothing_known
        self.registered: RegisteredMap | None = None  # registers processes with the kernel
        self.identify: Callable[[int], Container | Refusal] = identify
        self.proc = Path("/proc")  # the /proc that the ledgers read
        self.clock: Callable[[], float] = time.monotonic  # for resizes
        self.asked = 0
        self.api_server_answers = True
        self.stack = contextlib.AsyncExitStack()

    def gpunode(self) -> GpuNode:
        return GpuNode("node-a", gpus=self.gpus(), allocations=tuple(self.allocations), resizes=self.resizes)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs, if their size is known."""
        sized = dataclasses.replace(builders.gpu(), memory_bytes=self.gpu_bytes)
        known = enumerate(GPUS if self.gpu_bytes else ())
        return tuple(dataclasses.replace(sized, uuid=uuid, index=index) for index, uuid in known)

    def change(self, pod: str = "trainer", **amounts: Any) -> None:
        """Change fields of a pod's first share; the arbiter gets the change at once."""
        for position, entry in enumerate(self.allocations):
            if entry.id == f"of-{pod}":
                share = dataclasses.replace(entry.shares[0], **amounts)
                self.allocations[position] = dataclasses.replace(entry, shares=(share, *entry.shares[1:]))
        self.resizing.refresh()

    def write_status(self) -> None:
        """Write the status as the agent does; the arbiter gets it too."""
        if self.writes_status:
            self.resizes = self.resizing.apply(self.gpunode())
            asyncio.get_running_loop().call_soon(self.resizing.refresh)

    def add_pod(
        self,
        name: str,
        *shares: GivenShare,
        statuses: bool = True,
        memory: int = GIB,
        gpus: int = 1,
        holder: str = "",
        group: str = "",
        isolation: Isolation = Isolation.ARBITER,
    ) -> None:
        pod_shares = shares or (GivenShare(("main",), tuple(GPUS[:gpus]), 50, 100, memory),)
        names = [container for share in pod_shares for container in share.containers]
        status = [
            {"name": container, "containerID": f"containerd://{container_id(name, container)}"} for container in names
        ]
        annotations = {contract.ALLOCATION: f"of-{name}", contract.GROUP: group}
        self.pods.append(
            {
                "metadata": {"namespace": "default", "name": name, "uid": uid(name), "annotations": annotations},
                "status": {"containerStatuses": status if statuses else []},
            }
        )
        self.allocations.append(
            Allocation(
                f"of-{name}", PodRef("default", holder or name, ""), pod_shares, labels=Labels(isolation=isolation)
            )
        )

    def lookup(self) -> node_shares.Lookup:
        async def ask_pods() -> list[dict[str, Any]]:
            self.asked += 1
            if not self.api_server_answers:
                raise api_errors.Unavailable("it does not answer")
            return list(map(cluster_objects.trimmed_pod, self.pods))

        async def ask_node() -> GpuNode:
            self.asked += 1
            return self.gpunode()

        return node_shares.Lookup(
            pods=lambda: map(cluster_objects.trimmed_pod, self.pods if self.seen_pods is None else self.seen_pods),
            node=self.seen_node,
            ask_pods=ask_pods,
            ask_node=ask_node,
        )

    async def tenant(self, container: Container) -> Tenant | Refusal:
        """Return the tenant of a container, or a refusal."""
        return await self.answers.tenant(container)

    def seen_node(self) -> GpuNode:
        if self.seen_allocations is None:
            return self.gpunode()
        return GpuNode("node-a", gpus=self.gpus(), allocations=tuple(self.seen_allocations), resizes=self.resizes)

    async def start(self) -> None:
        self.groups = share_ledgers.ShareLedgers(
            self.directory / "state",
            context_bytes=lambda uuid: self.context_bytes(uuid),
            unclaimed_bytes=lambda *asked: self.unclaimed_bytes(*asked),
            registered=self.registered,
            proc=self.proc,
        )
        self.groups.recover()
        self.answers: ShareLookup = self.lookup()
        self.server = socket_server.Server(
            self.socket,
            lookup=DepartedShares(
                self,
                self.groups,
                node=self.seen_node,
                gpu_bytes=lambda _: self.gpu_bytes,
                wait_seconds=self.departed_seconds,
            ),
            ledgers=self.groups,
            identify=lambda pid: self.identify(pid),
        )
        self.orphans = Orphans(self.groups, identify=lambda pid: self.identify(pid))
        self.resizing = share_resizing.ShareResizer(
            self.groups,
            self.server.leases,
            orphans=self.orphans,
            node=self.seen_node,
            notify=self.write_status,
            gpu_bytes=lambda _: self.gpu_bytes,
            measured=lambda: self.measured,
            clock=lambda: self.clock(),
        )
        await self.server.__aenter__()
        self.resizing.refresh()

    async def stop(self) -> None:
        self.resizing.close()
        self.orphans.close()
        await self.server.__aexit__()
        self.groups.close()

    async def share(self, pod: str = "trainer", container: str = "main", *, environment: bool = True) -> Share:
        """Start a process of a container, which is not connected yet."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.deviceplugin.share_process",
            str(self.socket),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **({"TEST_POD": pod, "TEST_CONTAINER": container} if environment else {})},
        )
        self.stack.push_async_callback(_end, process)
        made = Share(process)
        await made.answer()
        return made

    def used(self, pod: str = "trainer") -> tuple[int, ...] | None:
        used_bytes = [use.used_bytes for use in self.groups.uses() if use.tenant.pod == pod]
        return used_bytes[0] if used_bytes else None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()


@contextlib.asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[ArbiterNode]:
    """Yield a node with a running arbiter."""
    made = ArbiterNode(directory)
    await made.start()
    try:
        async with made.stack:
            yield made
    finally:
        await made.stop()
