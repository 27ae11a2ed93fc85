"""The groups that all others build on: the copies of the cluster's objects, and the node's GPUs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from deviceplugin.agent_settings import AgentSettings
from deviceplugin.allocation import aligned, answer
from deviceplugin.arbiter import socket_server
from deviceplugin.hardware import discovery, gpu_health, nvml, nvml_mig, observation, xid
from deviceplugin.hardware.driver import Driver
from deviceplugin.modes import cluster_config, gpu_users
from deviceplugin.mps import daemons
from deviceplugin.node_pods import NodePods
from deviceplugin.state import node_state, pod_resources
from deviceplugin.state.gpunode_copy import GpuNodeCopy, NodeEvents
from deviceplugin.state.node_state import Wake
from gpushare import contract
from gpushare.cluster import api_client, events
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode
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
    configuration: cluster_config.Configuration
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
        configuration=cluster_config.Configuration(
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
        return discovery.device_nodes(self.observation.minors, roots=(Path("/"), root), parts=self.observation.parts)

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
            ignored=xid.filter_from(os.environ),
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
            checkpoint=settings.kubelet_directory / pod_resources.CHECKPOINT_NAME,
        ),
    )
