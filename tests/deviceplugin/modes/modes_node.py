"""A node's GPUs and the part of an agent that makes them what a configuration wants, in one process that has an NVML.

The driver is the simulated one, the kubelet's end speaks gRPC, daemons of MPS are processes; only the API server is
what a test says it is. An agent can be killed anywhere, and the next one is made of what it left on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from deviceplugin.arbiter import socket_server
from deviceplugin.hardware import gpu_health, nvml, nvml_mig, observation
from deviceplugin.hardware.driver import Driver
from deviceplugin.mig import partitioner
from deviceplugin.modes import (
    compute_part,
    desired_config,
    gpu_users,
    mig_part,
    mode_checkpoint,
    mode_reconciler,
    setup,
)
from deviceplugin.modes.mps_part import MpsPart
from deviceplugin.mps import daemons
from deviceplugin.state import allocatable, node_state
from gpushare.gpunode import GpuNode
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu
from tests.deviceplugin import simulated
from tests.deviceplugin import simulated_kubelet as kubelets

GPU = "nvidia.com/gpu"
CONFIGS = {
    "exclusive": "version: v1\n",
    "fractional": f"version: v1\nsharing: {{fractional: {{resources: [{{name: {GPU}}}]}}}}\n",
    "time-slicing": f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: 4}}]}}}}\n",
    "mps": f"version: v1\nsharing: {{mps: {{resources: [{{name: {GPU}, replicas: 2}}]}}}}\n",
    "mig": (
        "version: v1\nflags: {migStrategy: mixed}\n"
        "mig: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]\n"
    ),
}


class DiedError(BaseException):
    """The agent was killed here."""


@dataclasses.dataclass
class Cluster:
    """The API server's end: what is wanted of the node, and what it was told."""

    label: str | None = None
    entries: dict[str, str] = dataclasses.field(default_factory=lambda: dict(CONFIGS))
    is_known: bool = True
    node: GpuNode | None = dataclasses.field(default_factory=lambda: GpuNode("node-a"))
    told: list[str] = dataclasses.field(default_factory=list)

    def now(self) -> GpuNode | None:
        return self.node

    async def settled(self) -> GpuNode:
        assert self.node is not None
        return self.node

    def tell(self, reason: str, note: str, *, warning: bool = False) -> None:  # noqa: ARG002
        self.told.append(f"{reason} {note}")


class Deadly:
    """A part that a GPU is set up with, at which the agent dies: `at` is `enter`, `leave` or nothing."""

    def __init__(self) -> None:
        self.at = ""

    async def enter(self, gpu: HardwareGpu, assignment: Assignment) -> None:  # noqa: ARG002 - a Part
        self._die("enter")

    async def leave(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:  # noqa: ARG002 - a Part
        self._die("leave")

    def _die(self, here: str) -> None:
        if self.at == here:
            raise DiedError


class Node:
    """The hardware, and what of an agent outlives it. `agent` is the one that runs."""

    def __init__(self, gpus: Path, directory: Path, kubelet: kubelets.Kubelet) -> None:
        self.gpus, self.directory, self.kubelet = gpus, directory, kubelet
        self.opened = nvml.Nvml()
        self.driver, self.mig = Driver(self.opened), nvml_mig.MigDriver(self.opened)
        self.uuids = simulated.uuids(gpus)
        self.cluster = Cluster()
        self.deadly = Deadly()
        self.book = directory / "modes.json"
        self.start()

    def start(self) -> None:
        """A new agent."""
        state = node_state.NodeState()
        self.seen, self.offer, self.statement, self.advertised = (
            state.seen,
            state.gpus,
            state.statement,
            state.advertised,
        )
        self.in_force, self.unread = state.in_force, state.unread
        self.known = asyncio.Event()
        self.known.set()
        self.observation = observation.Observation(
            self.driver,
            seen=self.seen,
            unread=state.unread,
            node=lambda: self.cluster.node,
            known=self.known,
            fault_log=gpu_health.FaultLog(self.directory),
            proc=self.directory,
            roots=(self.directory,),
        )
        self.witness = gpu_users.GpuUsers(
            self.driver,
            pod_resources_socket=self.kubelet.holdings,
            pods=tuple,
            proc=Path("/proc"),
            identify=socket_server.by_cgroup(),
            ours=lambda: self.daemons.pids(),
        )
        self.daemons = daemons.Daemons(
            root=self.directory / "mps", program=simulated.BUILD / "nvidia-cuda-mps-control", exclusive=self.exclusive
        )
        self.agent = mode_reconciler.ModeReconciler(
            self.cluster,
            self.cluster,
            self.cluster,
            self.cluster,
            self.observation,
            state,
            wake=asyncio.Event(),
            witness=self.witness,
            set_up=setup.SetUp(
                compute_part.ComputePart(self.driver, self.mig, self.observation.refresh),
                mig_part.MigPart(
                    self.driver,
                    partitioner.Partitioner(self.mig),
                    self.observation.refresh,
                    self.witness.in_use,
                ),
                self.deadly,
                setup.TimeSlices(),
                MpsPart(self.daemons, gpu_of=lambda uuid: {gpu.uuid: gpu for gpu in self.seen.gpus}.get(uuid)),
            ),
            path=self.book,
            options=desired_config.ModeOptions(),
            allocatable=allocatable.Stabilized(lambda gpus: allocatable.allocatable(gpus, self.cluster.node, ())),
            failure=lambda _: "",
        )

    async def exclusive(self, uuid: str, exclusive: bool) -> None:
        await self.driver.ask(self.mig.set_exclusive_process, uuid, exclusive=exclusive)

    async def step(self, times: int = 3) -> None:
        """Look at the GPUs and do what can be done; or die at it."""
        for _ in range(times):
            await self.observation.refresh()
            await self.agent.step()

    async def end(self) -> None:
        """The agent ends, however that comes; what it has started runs on."""
        await self.daemons.leave()

    async def reach(self, mode: str) -> None:
        """Have all GPUs used for that."""
        self.cluster.label = mode
        await self.step()

    @property
    def modes(self) -> list[str]:
        """What the GPUs are used for, as others are told; with `…` those that take nothing new."""
        return [f"{gpu.mode}{'…' if gpu.pending_mode else ''}" for gpu in self.offer.gpus]

    @property
    def pending(self) -> str:
        """What the GPUNode says of what is not as configured."""
        (pending,) = (condition for condition in self.statement.value.conditions if condition.type == "ConfigPending")
        return "" if pending.status == "False" else pending.message

    def facts(self) -> dict[str, list[object]]:
        """What the driver says of the GPUs, and where MPS has daemons."""
        modes = [self.mig.mig_mode(uuid) for uuid in self.uuids]
        return {
            "mig": [mode is not None and mode.current for mode in modes],
            "devices": [[str(mig_device.profile) for mig_device in self.mig.mig_devices(uuid)] for uuid in self.uuids],
            "compute": [str(self.mig.compute_mode(uuid)) for uuid in self.uuids],
            "daemons": [self.daemons.places(uuid).pid_file.exists() for uuid in self.uuids],
        }

    def forget(self) -> None:
        """What the agent knew is lost: it is installed again, or its disk was."""
        self.book.unlink()

    def cut(self, index: int, *, enabled: bool) -> None:
        """What an administrator does by hand: MIG on without a device, or off with all of them gone."""
        uuid = self.uuids[index]
        present = self.mig.mig_mode(uuid)
        for mig_instance in (
            self.mig.mig_instances(uuid) if present is not None and present.current and not enabled else ()
        ):
            for part in mig_instance.parts:
                self.mig.destroy_compute_instance(uuid, mig_instance.id, part.id)
            self.mig.destroy_gpu_instance(uuid, mig_instance.id)
        self.mig.set_mig_mode(uuid, enabled=enabled)

    def used_as(self, mode: str) -> dict[str, list[object]]:
        """The facts that belong to a mode."""
        count = len(self.uuids)
        compute = ComputeMode.EXCLUSIVE_PROCESS if mode == "mps" else ComputeMode.DEFAULT
        return {
            "mig": [mode == "mig"] * count,
            "devices": [["3g.20gb"] * 2 if mode == "mig" else []] * count,
            "compute": [str(compute)] * count,
            "daemons": [mode == "mps"] * count,
        }


Story = Callable[[Node], Awaitable[None]]


@contextlib.asynccontextmanager
async def running(gpus: Path, directory: Path) -> AsyncIterator[Node]:
    """A node whose GPUs are as new; nothing of it is left over."""
    (directory / "kubelet").mkdir(parents=True)
    kubelet = kubelets.Kubelet(directory / "kubelet")
    await kubelet.start()
    node = Node(gpus, directory, kubelet)
    try:
        yield node
    finally:
        node.deadly.at = ""
        await node.end()
        node.start()
        for uuid in node.uuids:
            await node.daemons.drop(uuid)
            await node.exclusive(uuid, exclusive=False)
            partitioner.Partitioner(node.mig).apply(uuid, None)
        await kubelet.stop()
        shutil.rmtree(directory)


__all__ = ["CONFIGS", "GPU", "Cluster", "DiedError", "Node", "mode_checkpoint", "running"]


def stories(namespace: Mapping[str, Any]) -> dict[str, Story]:
    """The stories that a module tells, by name."""
    name = namespace["__name__"]
    return {key: it for key, it in namespace.items() if inspect.iscoroutinefunction(it) and it.__module__ == name}


def tell(told: Mapping[str, Story]) -> None:
    """Be the program of such a module: GPUS DIRECTORY STORY."""

    async def main(gpus: str, directory: str, story: str) -> None:
        async with running(Path(gpus), Path(directory)) as node:
            await told[story](node)

    asyncio.run(main(*sys.argv[1:]))
