"""An arbiter with its auditor on simulated GPUs, in its own process because NVML is one per process.

Tests run it with a directory and the pods as JSON: {NAME: [MEMORY, GPU's index]}, optionally followed by request and
limit in percent, which are 50 and 100 by default. Each line on standard input is a command; the answer is a line of
JSON.

look             audit once; print the document, the conditions, and the Events since the last audit
limits POD N     change the pod's limit in the GPUNode only, without the arbiter
mode GPU WORD    change the mode of the GPU with this index
context GPU      print the bytes that are charged for a context on it
figures          print the metrics
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

import prometheus_client
from prometheus_client.registry import Collector

from deviceplugin.audit import auditor, node_audit, overhead
from deviceplugin.hardware import nvml
from deviceplugin.hardware.nvml import Driver
from deviceplugin.state.node_state import ObservableGpus
from gpushare.allocation import GivenShare
from gpushare.gpunode import GpuNode, Mode
from tests.deviceplugin import arbiter_node, linked, named


class Node:
    def __init__(
        self,
        opened: nvml.Nvml,
        gpus: ObservableGpus,
        sizes: overhead.ContextSizes,
        made: arbiter_node.ArbiterNode,
        link: linked.Linked,
        ends: bool,
    ) -> None:
        self.node = made
        self.arbiter = link.arbiter
        self.gpus, self.sizes = gpus, sizes
        self.events: list[list[str]] = []
        self.given: GpuNode | None = None
        self.driver = Driver(opened)
        self.auditor = auditor.Auditor(
            self.driver,
            link.arbiter,
            sizes,
            gpus=lambda: gpus.gpus,
            node=lambda: self.given or made.gpunode(),
            pods=lambda: made.pods,
            warn=lambda reason, note, of: self.events.append([reason, note, "/".join(of or ())]),
            changed=lambda: None,
            node_name="node-a",
            identify=named.identify,
            end_unlimited=ends,
        )

    async def do(self, verb: str, *words: str) -> Any:
        match verb:
            case "look":
                self.events.clear()
                await self.auditor.step()
                await self.arbiter.report()  # by then it has all measurements
                conditions = [dataclasses.asdict(condition) for condition in self.auditor.conditions]
                return {"audit": self.auditor.document(), "conditions": conditions, "events": self.events}
            case "limits":
                self.given = dataclasses.replace(
                    self.node.gpunode(),
                    allocations=tuple(
                        dataclasses.replace(
                            allocation, shares=(dataclasses.replace(allocation.shares[0], memory_bytes=int(words[1])),)
                        )
                        if allocation.pod.name == words[0]
                        else allocation
                        for allocation in self.node.allocations
                    ),
                )
            case "mode":
                self.gpus.publish(
                    tuple(
                        dataclasses.replace(gpu, mode=Mode(words[1])) if gpu.index == int(words[0]) else gpu
                        for gpu in self.gpus.gpus
                    )
                )
            case "context":
                return self.sizes.bytes_on(self.gpus.gpus[int(words[0])].uuid)
            case "figures":
                return self.figures()
        return None

    def figures(self) -> str:
        made = self

        class Audited(Collector):
            def collect(self) -> Any:
                return node_audit.figures(made.auditor.audit, node_name="node-a")

        registry = prometheus_client.CollectorRegistry()
        registry.register(Audited())
        return prometheus_client.generate_latest(registry).decode()


async def serve(node: Node) -> None:
    """Say that the node is ready. Then do what each line of standard input says, and print the answer as JSON."""
    sys.stdout.write("null\n")
    sys.stdout.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        answer = await node.do(*line.split())
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


async def main(directory: Path, pods: dict[str, list[int]], *more: str) -> None:
    opened = nvml.Nvml()
    gpus = ObservableGpus(opened.snapshot().gpus)
    uuids = [gpu.uuid for gpu in gpus.gpus]
    sizes = overhead.ContextSizes(overhead.ContextCheckpoint(directory), gpus, driver_version=opened.version())
    made = arbiter_node.ArbiterNode(directory)
    for name, (memory_bytes, gpu, *compute) in pods.items():
        request, limit = compute or (50, 100)
        made.add_pod(name, GivenShare(("main",), (uuids[gpu],), request, limit, memory_bytes))
    await made.start()
    with linked.to(made, context_bytes=sizes.bytes_on) as link:
        node = Node(opened, gpus, sizes, made, link, "end" in more)
        link.unclaimed_bytes = functools.partial(overhead.unclaimed_on_gpu, node.driver, link.arbiter.shares)
        await serve(node)
    await made.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:]))
