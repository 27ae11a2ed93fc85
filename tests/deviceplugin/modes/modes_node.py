"""A node's GPUs and the agent's mode reconciler, in one process with NVML.

The driver is simulated, the kubelet speaks gRPC, and MPS daemons are real processes. Only the API server is replaced by
values that a test sets. The agent can be killed at any point; the next one starts from what is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from deviceplugin import agent_settings
from deviceplugin.arbiter import socket_server
from deviceplugin.hardware import gpu_health, nvml, nvml_mig, observation, partitioner
from deviceplugin.hardware.nvml import Driver
from deviceplugin.mig import mig_devices
from deviceplugin.mig.mig_devices import MigShares
from deviceplugin.modes import gpu_users, mode_checkpoint, mode_reconciler, setup, transition
from deviceplugin.mps import daemons
from deviceplugin.state import advertisement, node_state
from gpushare.gpunode import GpuNode, Mode
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu
from gpushare.pod import PodJson
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
    """The agent is killed here."""


@dataclasses.dataclass
class Cluster:
    """The API server: the wanted configuration, the GPUNode, and the recorded Events."""

    label: str | None = None
    entries: dict[str, str] = dataclasses.field(default_factory=lambda: dict(CONFIGS))
    is_known: bool = True
    is_borrowing: bool = False
    node: GpuNode | None = dataclasses.field(default_factory=lambda: GpuNode("node-a"))
    pods: list[PodJson] = dataclasses.field(default_factory=list)
    told: list[str] = dataclasses.field(default_factory=list)

    @property
    def own_label(self) -> str | None:
        return self.label

    def now(self) -> GpuNode | None:
        return self.node

    async def settled(self) -> GpuNode:
        assert self.node is not None
        return self.node

    def record(self, reason: str, note: str, *, warning: bool = False) -> None:  # noqa: ARG002
        self.told.append(f"{reason} {note}")


class Deadly(setup.SetUpPart):
    """A setup part that kills the agent. at: `set_up`, `tear_down`, or empty for never."""

    def __init__(self) -> None:
        self.at = ""

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:  # noqa: ARG002 - a SetUpPart
        self._die("set_up")

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:  # noqa: ARG002 - a SetUpPart
        self._die("tear_down")

    def _die(self, here: str) -> None:
        if self.at == here:
            raise DiedError


class Node:
    """The hardware, the disk, and the running `agent`."""

    def __init__(self, gpus: Path, directory: Path, kubelet: kubelets.Kubelet) -> None:
        self.gpus, self.directory, self.kubelet = gpus, directory, kubelet
        self.opened = nvml.Nvml()
        self.driver, self.mig = Driver(self.opened), nvml_mig.MigDriver(self.opened)
        self.uuids = simulated.uuids(gpus)
        self.cluster = Cluster()
        self.deadly = Deadly()
        self.checkpoint = directory / "modes.json"
        self.seconds = 0.0  # on the clock of `mig_shares`
        self.start()

    def start(self) -> None:
        """Start a new agent."""
        state = node_state.NodeState()
        self.seen, self.gpus_with_modes, self.config_status, self.advertised = (
            state.seen,
            state.gpus,
            state.config_status,
            state.advertised,
        )
        self.in_force, self.unread, self.published = state.in_force, state.unread, state.published
        self.mps_gpus: set[str] = set()  # where shares may have the isolation mps
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
            cut_for_shares=lambda *gpu: self.mig_shares.are_only_ours(*gpu),
        )
        self.gpu_users = gpu_users.GpuUsers(
            self.driver,
            pod_resources_socket=self.kubelet.holdings,
            pods=tuple,
            proc=Path("/proc"),
            identify=socket_server.by_cgroup(),
            own_pids=lambda: self.daemons.pids(),
        )
        self.daemons = daemons.Daemons(
            root=self.directory / "mps",
            program=simulated.BUILD / "nvidia-cuda-mps-control",
            set_exclusive=self.exclusive,
        )
        cluster: Any = self.cluster
        self.mig_shares = MigShares(
            self.driver,
            self.mig,
            path=self.directory / mig_devices.NAME,
            node=lambda: self.cluster.node,
            pods=lambda: self.cluster.pods,
            fractional=self.fractional,
            changed=self.observe,
            warn=self.cluster.told.append,
            clock=lambda: self.seconds,
        )
        self.agent = mode_reconciler.ModeReconciler(
            cluster,
            cluster,
            cluster.settled,
            cluster,
            self.observation,
            state,
            wake=asyncio.Event(),
            gpu_users=self.gpu_users,
            mode_setup=setup.ModeSetup(
                setup.ComputeModePart(self.driver, self.mig, self.observation.refresh),
                setup.MigPart(
                    self.driver,
                    partitioner.Partitioner(self.mig),
                    self.observation.refresh,
                    lambda: self.gpu_users.in_use() | self.mig_shares.parents.keys(),
                ),
                self.deadly,
                setup.TimeSlicePart(),
                setup.MpsPart(self.daemons, gpu_of=lambda uuid: {gpu.uuid: gpu for gpu in self.seen.gpus}.get(uuid)),
                setup.MigSharesPart(lambda uuid: self.mig_shares.merge(uuid)),
            ),
            path=self.checkpoint,
            options=agent_settings.ModeOptions(),
            allocatable=advertisement.DelayedDecrease(
                lambda gpus: advertisement.allocatable(gpus, self.cluster.node, ())
            ),
            mps_problem=lambda _: "",
            with_isolations=self.with_isolations,
        )

    def fractional(self) -> frozenset[str]:
        now = self.in_force.value.assignments.items()
        return frozenset(uuid for uuid, assigned in now if assigned is not None and assigned.mode is Mode.FRACTIONAL)

    def with_isolations(self, gpu: HardwareGpu, partitions: int) -> HardwareGpu:
        by_mps, by_mig = gpu.uuid in self.mps_gpus, self.mig_shares.can_share(gpu)
        is_stuck = self.mig_shares.is_stuck(gpu.uuid)
        return transition.with_isolations(gpu, by_mps=by_mps, by_mig=by_mig, only_mig=is_stuck, partitions=partitions)

    async def observe(self) -> None:
        await self.observation.refresh()

    async def exclusive(self, uuid: str, exclusive: bool) -> None:
        await self.driver.ask(self.mig.set_exclusive_process, uuid, exclusive=exclusive)

    async def step(self, times: int = 3) -> None:
        """Observe the GPUs and reconcile, several times. Raises DiedError if the agent is killed."""
        for _ in range(times):
            await self.observation.refresh()
            await self.agent.step()

    async def end(self) -> None:
        """End the agent; the MPS daemons run on."""
        await self.daemons.detach()

    async def reach(self, mode: str) -> None:
        """Select a configuration, and reconcile until it is in force."""
        self.cluster.label = mode
        await self.step()

    @property
    def modes(self) -> list[str]:
        """The published mode of each GPU, with `…` if it is closed."""
        return [f"{gpu.mode}{'…' if gpu.pending_mode else ''}" for gpu in self.gpus_with_modes.gpus]

    @property
    def pending(self) -> str:
        """The message of the condition ConfigPending; empty if it is False."""
        (pending,) = (
            condition for condition in self.config_status.value.conditions if condition.type == "ConfigPending"
        )
        return "" if pending.status == "False" else pending.message

    def facts(self) -> dict[str, list[object]]:
        """Return the state of the GPUs as the driver sees it, and which GPUs have MPS daemons."""
        modes = [self.mig.mig_mode(uuid) for uuid in self.uuids]
        return {
            "mig": [mode is not None and mode.current for mode in modes],
            "devices": [[str(mig_device.profile) for mig_device in self.mig.mig_devices(uuid)] for uuid in self.uuids],
            "compute": [str(self.mig.compute_mode(uuid)) for uuid in self.uuids],
            "daemons": [self.daemons.files(uuid).pid_file.exists() for uuid in self.uuids],
        }

    def forget(self) -> None:
        """Delete the checkpoint, as after a reinstallation or the loss of the disk."""
        self.checkpoint.unlink()

    def cut(self, index: int, *, enabled: bool) -> None:
        """Turn MIG on without devices, or off with all devices deleted, as an administrator does by hand."""
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
        """Return the facts that a mode should lead to."""
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
    """Yield a node with fresh GPUs, and clean everything up after it."""
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
            await node.daemons.stop(uuid)
            await node.exclusive(uuid, exclusive=False)
            partitioner.Partitioner(node.mig).apply(uuid, None)
        await kubelet.stop()
        shutil.rmtree(directory)


__all__ = ["CONFIGS", "GPU", "Cluster", "DiedError", "Node", "mode_checkpoint", "running"]


def stories(namespace: Mapping[str, Any]) -> dict[str, Story]:
    """Return the stories in a module, by name."""
    name = namespace["__name__"]
    return {key: it for key, it in namespace.items() if inspect.iscoroutinefunction(it) and it.__module__ == name}


def tell(told: Mapping[str, Story]) -> None:
    """Run as the program of a story module: DIRECTORY [STORY …], by default all.

    Each story has its own GPUs and process, because NVML remembers what it has seen. The processes are forked after
    the imports, which take longer than most stories.
    """
    directory, *names = sys.argv[1:]
    failed = [name for name in names or told if not _succeeds(told[name], Path(directory))]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _succeeds(story: Story, directory: Path) -> bool:
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    code = 1
    try:
        asyncio.run(_tell(story, directory))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


async def _tell(story: Story, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        gpus = simulated.create(Path(scratch) / "gpus")
        os.environ["SIMGPU_DIR"] = str(gpus)
        async with running(gpus, directory / "node") as node:
            await story(node)
