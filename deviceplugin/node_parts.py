"""The parts that all others build on: copies of the cluster's objects, the GPUs, the arbiter's link and the audit."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from deviceplugin import cluster_objects
from deviceplugin.agent_settings import AgentSettings
from deviceplugin.allocation import aligned, answer
from deviceplugin.arbiter import socket_server
from deviceplugin.audit import auditor, overhead, unclaimed_memory
from deviceplugin.cluster_objects import NodePods
from deviceplugin.hardware import gpu_health, inventory, nvml, nvml_events, nvml_mig, observation
from deviceplugin.hardware.nvml import Driver
from deviceplugin.link import arbiter, arbiter_process, lookup, running_shares
from deviceplugin.modes import gpu_users
from deviceplugin.mps import daemons
from deviceplugin.report import announcements, share_peaks
from deviceplugin.state import kubelet_checkpoint, node_state
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.node_events import NodeEvents
from deviceplugin.state.wake import Wake
from gpushare import contract
from gpushare.cluster import api_client, events
from gpushare.gpu import Gpu
from gpushare.gpunode import Condition, GpuNode
from gpushare.modes.hardware_gpu import HardwareGpu

# The loops of a group, by the name of their task.
Loops = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParts:
    """The copies of the cluster's objects, and the values that all groups share."""

    settings: AgentSettings
    api: api_client.ApiClient
    pods: NodePods
    wake: Wake
    state: node_state.NodeState
    gpunode: GpuNodeCopy
    configuration: cluster_objects.Configuration
    recorder: events.Recorder
    events: NodeEvents
    identify: socket_server.Identify

    @property
    def watches(self) -> Loops:
        return {
            "gpunode": self.gpunode.informer.run,
            "pods": self.pods.informer.run,
            "configuration": self.configuration.run,
        }

    @property
    def is_known(self) -> bool:
        """Whether the GPUNode, or its absence, and the pods of this node are known."""
        return self.gpunode.informer.synced.is_set() and self.pods.informer.synced.is_set()

    async def synced(self) -> None:
        """Wait until the GPUNode and the pods are known."""
        await self.gpunode.informer.synced.wait()
        await self.pods.informer.synced.wait()

    def known_node(self) -> GpuNode | None:
        """Return the GPUNode, an empty one if there is none; None while it or the pods are unknown."""
        if not self.is_known:
            return None
        return self.gpunode.now() or GpuNode(self.settings.node_name)


def build_cluster(settings: AgentSettings, api: api_client.ApiClient, *, pods: NodePods, wake: Wake) -> ClusterParts:
    """Build the copies of the cluster's objects."""
    name = settings.node_name
    gpunode = GpuNodeCopy(api, node_name=name, wake=wake.status)
    recorder = events.Recorder(api, controller=f"{contract.PREFIX}agent", instance=name)
    return ClusterParts(
        settings=settings,
        api=api,
        pods=pods,
        wake=wake,
        state=node_state.NodeState(),
        gpunode=gpunode,
        configuration=cluster_objects.Configuration(
            api, node_name=name, config_map=settings.config_map, changed=wake.all
        ),
        recorder=recorder,
        events=NodeEvents(recorder, gpunode, pods=pods.all),
        identify=socket_server.by_cgroup(settings.proc_root),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HardwareParts:
    """The GPUs and their users, and the MPS daemons."""

    state: node_state.NodeState
    driver: Driver
    driver_version: str
    mig: nvml_mig.MigDriver
    observation: observation.Observation
    mps_daemons: daemons.Daemons
    users: gpu_users.GpuUsers

    @property
    def loops(self) -> Loops:
        return {"gpus": self.observation.run}

    def gpus(self) -> tuple[HardwareGpu, ...]:
        return self.observation.hardware_gpus

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.state.seen.gpus if gpu.uuid == uuid), None)

    def memory_bytes(self, uuid: str) -> int:
        """Return a GPU's memory; 0 if the GPU is gone."""
        return gpu.memory_bytes if (gpu := self.gpu(uuid)) is not None else 0

    def gpu_of(self) -> dict[str, str]:
        """Return the GPU's UUID by the UUID of each GPU and MIG device."""
        return {
            uuid: gpu.uuid for gpu in self.gpus() for uuid in (gpu.uuid, *(device.uuid for device in gpu.mig_devices))
        }

    def nodes(self) -> answer.DevicePaths:
        """Return the device nodes of each GPU."""
        root = Path(self.state.in_force.value.settings.container_driver_root)
        return inventory.device_nodes(self.observation.minors, roots=(Path("/"), root), parts=self.observation.parts)

    def scores(self) -> Mapping[tuple[str, str], int]:
        """Return how well each pair of GPUs is connected."""
        return aligned.scores_by_uuid(self.state.gpus.gpus, self.observation.paths)

    def unreadable(self) -> str | None:
        """Return why no GPU of this node can be read; None if one can, or if there is none."""
        unread = self.state.unread.value
        return None if self.state.seen.gpus or not unread else "; ".join(map(str, unread))


def build_hardware(cluster: ClusterParts, opened: nvml.Nvml) -> HardwareParts:
    """Build the observation of the driver, the MPS daemons, and the search for users of a GPU."""
    settings, state = cluster.settings, cluster.state
    driver, mig = Driver(opened), nvml_mig.MigDriver(opened)

    async def set_exclusive(uuid: str, exclusive: bool) -> None:
        await driver.ask(mig.set_exclusive_process, uuid, exclusive=exclusive)

    mps_daemons = daemons.Daemons(
        root=settings.mps_root, program=settings.mps_program, set_exclusive=set_exclusive, changed=cluster.wake.all
    )
    return HardwareParts(
        state=state,
        driver=driver,
        driver_version=opened.version(),
        mig=mig,
        observation=observation.Observation(
            driver,
            seen=state.seen,
            unread=state.unread,
            node=cluster.gpunode.now,
            known=cluster.gpunode.informer.synced,
            fault_log=gpu_health.FaultLog(settings.state_directory, proc=settings.proc_root),
            changed=cluster.wake.all,
            ignored=nvml_events.filter_from(os.environ),
            proc=settings.proc_root,
            roots=(Path("/"), settings.container_driver_root),
        ),
        mps_daemons=mps_daemons,
        users=gpu_users.GpuUsers(
            driver,
            pod_resources_socket=settings.pod_resources_socket,
            pods=cluster.pods.all,
            proc=settings.proc_root,
            identify=cluster.identify,
            own_pids=mps_daemons.pids,
            checkpoint=settings.kubelet_directory / kubelet_checkpoint.NAME,
        ),
    )


# How long the agent's view of the cluster can be stale before it counts: an API server restarts faster than that.
STALE_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShareParts:
    """The agent's end of the arbiter, and the audit. audited: set once the first complete audit can be reported."""

    cluster: ClusterParts
    running: running_shares.Shares
    lookup: lookup.Lookup
    arbiter: arbiter.Arbiter
    auditor: auditor.Auditor
    peaks: share_peaks.Peaks
    audited: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def loops(self) -> Loops:
        return {"audit": self._audit, "peaks": self.peaks.run}

    def conditions(self) -> tuple[Condition, ...]:
        """Return the audit's conditions; none before the first complete audit."""
        return self.auditor.conditions if self.audited.is_set() else ()

    async def _audit(self) -> None:
        # The audit compares processes with the GPUs' modes, so these must be known first.
        await self.cluster.state.published.wait()
        # Until the pods are known, the node's endpoint reports the audit as incomplete, and the GPUNode keeps its last
        # condition. Otherwise a slow API server would make the condition of every node unknown and lose findings. If
        # the pods stay unknown, the condition says so, as nothing supports the previous agent's findings any more.
        last = time.monotonic() + STALE_SECONDS
        while not self.cluster.is_known and time.monotonic() < last:
            await self.auditor.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(auditor.SECONDS):
                    await self.cluster.synced()
        await self.auditor.step()
        self.audited.set()
        self.cluster.wake.status.set()
        await self.auditor.run()


def build_shares(cluster: ClusterParts, hardware: HardwareParts, process: arbiter_process.ArbiterProcess) -> ShareParts:
    """Build the connection to the arbiter's process, and the audit."""
    settings, state, pods = cluster.settings, cluster.state, cluster.pods
    running = running_shares.Shares()
    sizes = overhead.ContextSizes(
        overhead.ContextCheckpoint(settings.root, until_learned_bytes=settings.context_memory_bytes),
        state.gpus,
        driver_version=hardware.driver_version,
    )
    owners = lookup.Lookup(
        pods=pods.all, node=cluster.gpunode.now, ask_pods=pods.fetch, ask_node=cluster.gpunode.refreshed
    )
    connected = arbiter.Arbiter(
        process.channel,
        lookup=owners,
        node=cluster.gpunode.now,
        tell=cluster.wake.status.set,
        context_bytes=sizes.bytes_on,
        unclaimed_bytes=functools.partial(unclaimed_memory.unclaimed_on_gpu, hardware.driver, running),
        refused=announcements.RefusedLibraries(pods.all, cluster.events.warn).refused,
        shares=running,
    )
    return ShareParts(
        cluster=cluster,
        running=running,
        lookup=owners,
        arbiter=connected,
        auditor=auditor.Auditor(
            hardware.driver,
            connected,
            sizes,
            gpus=state.gpus,
            node=cluster.known_node,
            pods=pods.all,
            warn=cluster.events.warn,
            changed=cluster.wake.status.set,
            node_name=settings.node_name,
            identify=cluster.identify,
            end_unlimited=settings.end_unlimited,
            proc=settings.proc_root,
        ),
        peaks=share_peaks.Peaks(
            settings.state_directory, uses=running.uses, leases=running.lease_usage, pods=pods.uids
        ),
    )
