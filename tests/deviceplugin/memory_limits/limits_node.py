"""An arbiter and an agent's memory limits and audit on simulated GPUs, in its own process because NVML is one per process.

Tests run it with a directory, the root of a cgroup hierarchy, and the pods as JSON, as for `audit_node`. Containers are
identified by their real cgroups. Each line on standard input is a command; the answer is a line of JSON.

probe             print what enforces memory limits on the first GPU, by a new probe
cover POD         set a pod's limit, as at its start; print why that failed
round             set and clear all limits that are not as they should be
look              audit once; print the document, the conditions, and the Events since the last audit
limits POD        print soft and hard limit and use, of the pod and of its container
set POD HARD SOFT set the container's limits behind the agent's back
resize POD N      change the share's memory, and apply it as the agent does; print the resizes
burst POD N       set the share's memory limit, and write the status whenever the arbiter asks
end POD           remove the pod's allocation
overtake POD N    resize the pod while a round waits for the directories of the cgroups
start POD         set the limit of a pod that gets its allocation during such a round; print why that failed
hurry             wait for the driver for one second at most
stall             have a call of the driver never return
late              have the agent's informers lack all pods
forget            have the agent know no pods yet, as after its start
copy POD          add a pod whose annotation names this pod's allocation
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from deviceplugin.arbiter import lending, socket_server
from deviceplugin.audit import overhead
from deviceplugin.hardware import nvml, nvml_limits
from deviceplugin.memory_limits import enforcer
from deviceplugin.memory_limits.enforcer import LimitEnforcer
from deviceplugin.memory_limits.plan import PodCgroup
from deviceplugin.state.node_state import ObservableGpus
from gpushare.allocation import GivenShare
from gpushare.gpunode import Resize
from tests.deviceplugin import audit_node, linked
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.deviceplugin.memory_limits.programs.probing import KERNEL
from tests.deviceplugin.named import container_id, uid

Answer = TypeVar("Answer")


class Node(audit_node.Node):
    def __init__(
        self, opened: nvml.Nvml, gpus: ObservableGpus, sizes: overhead.ContextSizes, made: ArbiterNode, root: Path
    ):
        self.seen: Callable[[list[dict[str, Any]]], list[dict[str, Any]] | None] = lambda pods: pods
        self.publishing: set[asyncio.Future[None]] = set()
        self.root, self.made, self.link = root, made, linked.Linked(made, sizes.bytes_on)
        super().__init__(opened, gpus, sizes, made, self.link, ends=False)
        self.memory_limits = LimitEnforcer(
            self.driver,
            self.link.arbiter,
            root=root,
            gpus=lambda: gpus.gpus,
            node=made.gpunode,
            pods=lambda: self.seen(made.pods),
            find=made.lookup().holder,
            context_bytes=sizes.bytes_on,
            running=self.link.arbiter.shares.limit_bytes,
            warn=self.auditor.warn,
        )
        self.link.arbiter.prove = self.memory_limits.prove
        self.auditor.driver_limits = lambda: self.memory_limits.states
        self.auditor.identify = self.auditor._scanner.identify = socket_server.by_cgroup(Path("/proc"))

    async def do(self, verb: str, *words: str) -> Any:
        pod = words[0] if words else ""
        uuid, of_pod = self.gpus.gpus[0].uuid, self.root / "kubepods" / f"pod{uid(pod)}"
        of_container = of_pod / container_id(pod, "main")
        match verb:
            case "probe":
                return nvml_limits.EnforcementProbe(self.root, kernel=KERNEL)(uuid)
            case "cover":
                return await self.memory_limits.cover(uid(pod))
            case "round":
                return await self.memory_limits.step()
            case "limits":
                return [dataclasses.astuple(nvml_limits.read(uuid, cgroup)) for cgroup in (of_pod, of_container)]
            case "set":
                return nvml_limits.write(uuid, of_container, hard_bytes=int(words[1]), soft_bytes=int(words[2]))
            case "resize":
                return [dataclasses.astuple(resize) for resize in await self.resize(pod, int(words[1]))]
            case "burst":
                self.made.gpu_bytes = self.gpus.gpus[0].memory_bytes
                setattr(lending, "KEPT_SECONDS", 0.0)  # noqa: B010 - it is Final
                self.made.resizing.notify = self.link.agent.changed
                self.link.arbiter.tell = lambda: self.publishing.add(asyncio.ensure_future(self.publish()))
                return self.change(pod, memory_limit_bytes=int(words[1]))
            case "end":
                self.made.allocations = [entry for entry in self.made.allocations if entry.id != f"of-{pod}"]
                return None
            case "overtake":
                resizes = await self.during_round(lambda: self.resize(pod, int(words[1])))
                return [dataclasses.astuple(resize) for resize in resizes]
            case "start":
                entries = list(self.made.allocations)
                await self.do("end", pod)

                async def cover() -> str:
                    self.made.allocations = entries
                    return await self.memory_limits.cover(uid(pod))

                return await self.during_round(cover)
            case "hurry":
                setattr(enforcer, "WAIT_SECONDS", 1.0)  # noqa: B010 - it is Final
                return None
            case "stall":
                self.stalled = asyncio.create_task(self.driver.ask(threading.Event().wait))
                return await asyncio.sleep(0)
            case "forget":
                self.seen = lambda _: None
                return None
            case "late":
                self.seen = lambda _: []
                return None
            case "copy":
                (known,) = [known for known in self.made.pods if known["metadata"]["name"] == pod]
                other = {**known["metadata"], "name": f"{pod}-copy", "uid": uid(f"{pod}2")}
                self.made.pods.append({**known, "metadata": other})
                return None
        return await super().do(verb, *words)

    async def during_round(self, act: Callable[[], Awaitable[Answer]]) -> Answer:
        scan, begun, released = enforcer._scan, threading.Event(), threading.Event()

        def held(root: Path, uids: Collection[str], known: Mapping[str, PodCgroup]) -> dict[str, PodCgroup]:
            begun.set()
            assert released.wait(30)
            return scan(root, uids, known)

        enforcer._scan = held
        checking = asyncio.create_task(self.memory_limits.step())
        assert await asyncio.to_thread(begun.wait, 30)
        enforcer._scan = scan
        acting = asyncio.ensure_future(act())
        await asyncio.wait({acting}, timeout=1)  # it may wait for the round
        released.set()
        await checking
        return await acting

    async def resize(self, pod: str, memory_bytes: int) -> tuple[Resize, ...]:
        (entry,) = (entry for entry in self.made.allocations if entry.id == f"of-{pod}")
        has_bytes = entry.shares[0].memory_bytes
        shrink_to_bytes = None if memory_bytes > has_bytes else memory_bytes
        self.change(pod, memory_bytes=max(memory_bytes, has_bytes), shrink_to_bytes=shrink_to_bytes)
        return await self.memory_limits.apply(self.made.gpunode())

    def change(self, pod: str, **amounts: Any) -> None:
        for position, entry in enumerate(self.made.allocations):
            if entry.id == f"of-{pod}":
                share = dataclasses.replace(entry.shares[0], **amounts)
                self.made.allocations[position] = dataclasses.replace(entry, shares=(share,))

    async def publish(self) -> None:
        self.made.resizes = await self.memory_limits.apply(self.made.gpunode())
        self.memory_limits.refresh()


async def main(directory: Path, root: Path, pods: dict[str, list[int]]) -> None:
    opened = nvml.Nvml()
    probe = nvml_limits.EnforcementProbe(root, kernel=KERNEL)
    gpus = ObservableGpus(
        tuple(dataclasses.replace(gpu, memory_enforcement=probe(gpu.uuid)) for gpu in opened.snapshot().gpus)
    )
    sizes = overhead.ContextSizes(overhead.ContextCheckpoint(directory), gpus, driver_version=opened.version())
    made = ArbiterNode(directory)
    made.identify = socket_server.by_cgroup(Path("/proc"))
    made.writes_status = False
    for name, (memory_bytes, gpu) in pods.items():
        made.add_pod(name, GivenShare(("main",), (gpus.gpus[gpu].uuid,), 50, 100, memory_bytes))
    await made.start()
    await audit_node.serve(Node(opened, gpus, sizes, made, root))
    await made.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])))
