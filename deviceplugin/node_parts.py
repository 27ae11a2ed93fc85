"""The parts that all others build on: copies of the cluster's objects, the GPUs, the arbiter, limits and audit."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from deviceplugin.agent_settings import AgentSettings
from deviceplugin.allocation import aligned, answer
from deviceplugin.arbiter import socket_server
from deviceplugin.audit import auditor, killed_clients, overhead
from deviceplugin.cluster_objects import Configuration, NodePods
from deviceplugin.hardware import gpu_health, inventory, nvml, nvml_events, nvml_limits, nvml_mig, observation
from deviceplugin.link import arbiter, node_shares
from deviceplugin.memory_limits import enforcer
from deviceplugin.mig import mig_devices
from deviceplugin.mig.mig_devices import MigShares
from deviceplugin.modes import gpu_owners, gpu_users
from deviceplugin.mps import daemons, shares
from deviceplugin.report import announcements, share_peaks
from deviceplugin.state import node_state, pod_resources
from deviceplugin.state.gpunode_copy import GpuNodeCopy, NodeEvents
from deviceplugin.state.node_state import Wake
from gpushare import contract
from gpushare.cluster import api_client, events
from gpushare.gpunode import Condition, Gpu, GpuNode, MemoryEnforcement, Mode
from gpushare.modes.hardware_gpu import HardwareGpu

# How long the agent's view of the cluster can be stale before it counts: an API server restarts faster than that.
STALE_SECONDS: Final = 60.0

# The loops of a group, by the name of their task.
Loops = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]


def as_given(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs, with those that another device plugin gives to other pods as exclusive: they have no shares."""
    return tuple(
        dataclasses.replace(gpu, mode=Mode.EXCLUSIVE) if gpu.owner == contract.OTHER_OWNER else gpu for gpu in gpus
    )


class ClusterParts:
    """The copies of the cluster's objects, and the values that all groups share."""

    def __init__(self, settings: AgentSettings, api: api_client.ApiClient, *, pods: NodePods, wake: Wake) -> None:
        self.settings = settings
        self.api = api
        self.pods = pods
        self.wake = wake
        self.name = name = settings.node_name
        self.state = node_state.NodeState()
        self.gpunode = GpuNodeCopy(api, node_name=name, wake=wake.status)
        self.configuration = Configuration(api, node_name=name, config_map=settings.config_map, changed=wake.all)
        self.recorder = events.Recorder(api, controller=f"{contract.PREFIX}agent", instance=name)
        self.events = NodeEvents(self.recorder, self.gpunode, pods=pods.all)
        self.identify = socket_server.by_cgroup(settings.proc_root)
        self.watches: Loops = {
            "gpunode": self.gpunode.informer.run,
            "pods": pods.informer.run,
            "configuration": self.configuration.run,
        }

    @property
    def is_known(self) -> bool:
        """Whether the GPUNode, or its absence, and the pods of this node are known."""
        return self.gpunode.informer.synced.is_set() and self.pods.informer.synced.is_set()

    async def synced(self) -> None:
        await self.gpunode.informer.synced.wait()
        await self.pods.informer.synced.wait()

    def known_node(self) -> GpuNode | None:
        """Return the GPUNode, an empty one if there is none; None while it or the pods are unknown."""
        return (self.gpunode.now() or GpuNode(self.name)) if self.is_known else None


class HardwareParts:
    """The GPUs and their users, and the MPS daemons."""

    def __init__(self, cluster: ClusterParts, opened: nvml.Nvml) -> None:
        settings = cluster.settings
        self.state = state = cluster.state
        self.driver = driver = nvml.Driver(opened)
        self.driver_version = opened.version()
        self.cuda_version = opened.cuda_version()
        self.mig = mig = nvml_mig.MigDriver(opened)
        self.mps_daemons = daemons.Daemons(
            root=settings.mps_root,
            program=settings.mps_program,
            set_exclusive=lambda uuid, exclusive: driver.ask(mig.set_exclusive_process, uuid, exclusive=exclusive),
            changed=cluster.wake.all,
            warn=functools.partial(cluster.events.record, contract.EVENT_MPS_DAEMON_ENDED, warning=True),
        )
        self.mps_shares = shares.MpsShares(
            self.mps_daemons,
            node=cluster.gpunode.now,
            fractional=lambda: self._fractional() - self.mig_shares.cut,
            changed=cluster.wake.all,
        )
        self.mig_shares = MigShares(
            driver,
            mig,
            path=settings.root / mig_devices.NAME,
            node=lambda: cluster.gpunode.now() if cluster.is_known else None,
            pods=cluster.pods.all,
            fractional=self._fractional,
            changed=self._cut,
            warn=functools.partial(cluster.events.record, contract.EVENT_MIG_FAILED, warning=True),
        )
        self.observation = observation.Observation(
            driver,
            seen=state.seen,
            unread=state.unread,
            node=cluster.gpunode.now,
            known=cluster.gpunode.informer.synced,
            fault_log=gpu_health.FaultLog(settings.state_directory, proc=settings.proc_root),
            enforcement=(
                nvml_limits.EnforcementProbe(settings.cgroup_root, settings.pod_uid)
                if settings.driver_memory
                else lambda _: MemoryEnforcement.LIBRARY
            ),
            cut_for_shares=self.mig_shares.are_only_ours,
            changed=cluster.wake.all,
            ignored=nvml_events.filter_from(os.environ),
            proc=settings.proc_root,
            roots=(Path("/"), settings.container_driver_root),
        )
        self.users = gpu_users.GpuUsers(
            driver,
            pod_resources_socket=settings.pod_resources_socket,
            pods=cluster.pods.all,
            proc=settings.proc_root,
            identify=cluster.identify,
            own_pids=self.mps_daemons.pids,
            checkpoint=settings.kubelet_directory / pod_resources.CHECKPOINT_NAME,
        )
        self.owners_wake = asyncio.Event()
        self.owners = gpu_owners.GpuOwners(
            state.owners,
            is_borrowing=lambda: state.in_force.value.borrows,
            held=functools.partial(
                pod_resources.held_by_all,
                settings.pod_resources_socket,
                settings.kubelet_directory / pod_resources.CHECKPOINT_NAME,
                cluster.pods.all,
            ),
            pods=cluster.pods.known,
            uuids=lambda: [gpu.uuid for gpu in state.seen.gpus],
            node=cluster.gpunode.now,
            identify=cluster.identify,
            processes=self.users.processes,
            wake=self.owners_wake,
        )
        state.in_force.wake(self.owners_wake)
        self.loops: Loops = {
            "owners": self.owners.run,
            "gpus": self.observation.run,
            "mps shares": self.mps_shares.run,
            "mig shares": self.mig_shares.run,
        }
        self._wake = cluster.wake

    async def _cut(self) -> None:
        """Publish MIG devices that were cut for shares; also if the driver reports the same: they may be of shares."""
        await self.observation.refresh()
        self._wake.all()

    def gpus(self) -> tuple[HardwareGpu, ...]:
        return self.observation.hardware_gpus

    def _fractional(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that are in mode fractional, also closed ones."""
        there = self.state.in_force.value
        return frozenset(
            uuid for uuid, now in there.assignments.items() if now is not None and now.mode is Mode.FRACTIONAL
        )

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.state.seen.gpus if gpu.uuid == uuid), None)

    def memory_bytes(self, uuid: str) -> int:
        return gpu.memory_bytes if (gpu := self.gpu(uuid)) is not None else 0

    def gpu_of(self) -> dict[str, str]:
        """Return the GPU's UUID by the UUID of each GPU and MIG device."""
        return {uuid: gpu.uuid for gpu in self.gpus() for uuid in (gpu.uuid, *(each.uuid for each in gpu.mig_devices))}

    def nodes(self) -> answer.DevicePaths:
        root = Path(self.state.in_force.value.settings.container_driver_root)
        return inventory.device_nodes(self.observation.minors, roots=(Path("/"), root), parts=self.observation.parts)

    def scores(self) -> Mapping[tuple[str, str], int]:
        return aligned.scores_by_uuid(self.state.gpus.gpus, self.observation.paths)

    def unreadable(self) -> str | None:
        """Return why no GPU of this node can be read; None if one can, or if there is none."""
        unread = self.state.unread.value
        return None if self.state.seen.gpus or not unread else "; ".join(map(str, unread))


class ShareParts:
    """The agent's end of the arbiter, the audit, and shares' peaks. audited: set after the first complete audit."""

    def __init__(self, cluster: ClusterParts, hardware: HardwareParts, process: arbiter.ArbiterProcess) -> None:
        settings, state, pods, node = cluster.settings, cluster.state, cluster.pods, cluster.gpunode
        self._cluster = cluster
        self.audited = asyncio.Event()
        self.running = running = node_shares.Shares()
        sizes = overhead.ContextSizes(
            overhead.ContextCheckpoint(settings.root, until_learned_bytes=settings.context_memory_bytes),
            state.gpus,
            driver_version=hardware.driver_version,
        )
        as_devices = hardware.mig_shares.as_devices

        def viewed(known: GpuNode | None) -> GpuNode | None:
            return None if known is None else as_devices(known)

        self.lookup = node_shares.Lookup(
            pods=pods.all, node=node.now, ask_pods=pods.fetch, ask_node=node.refreshed, as_devices=as_devices
        )
        self.arbiter = arbiter.Arbiter(
            process.channel,
            lookup=self.lookup,
            node=lambda: viewed(node.now()),
            tell=cluster.wake.status.set,
            context_bytes=sizes.bytes_on,
            unclaimed_bytes=functools.partial(overhead.unclaimed_on_gpu, hardware.driver, running),
            refused=announcements.RefusedLibraries(pods.all, cluster.events.warn).refused,
            prove=lambda container, holder: self.memory_limits.prove(container, holder),
            shares=running,
        )
        self.memory_limits = enforcer.LimitEnforcer(
            hardware.driver,
            self.arbiter,
            root=settings.cgroup_root,
            gpus=lambda: state.seen.gpus,
            node=lambda: viewed(node.now()),
            pods=pods.known,
            find=self.lookup.holder,
            context_bytes=sizes.bytes_on,
            running=running.limit_bytes,
            warn=cluster.events.warn,
            changed=cluster.wake.status.set,
        )
        killed = killed_clients.KilledClients()
        pods.informer.subscribe(lambda change: killed.pod_changed(change.new) if change.new is not None else None)
        self.auditor = auditor.Auditor(
            hardware.driver,
            self.arbiter,
            sizes,
            gpus=lambda: hardware.mig_shares.gpus(as_given(state.gpus.gpus)),
            node=lambda: viewed(cluster.known_node()),
            pods=pods.all,
            warn=cluster.events.warn,
            changed=cluster.wake.status.set,
            node_name=cluster.name,
            identify=cluster.identify,
            driver_limits=lambda: self.memory_limits.states,
            mps=hardware.mps_shares,
            mps_pids=hardware.mps_daemons.pids,
            parents=lambda: hardware.mig_shares.parents,
            killed_clients=killed if hardware.cuda_version <= killed_clients.LAST_CUDA else None,
            end_unlimited=settings.end_unlimited,
            proc=settings.proc_root,
        )
        self.peaks = share_peaks.Peaks(
            settings.state_directory, uses=running.uses, leases=running.lease_usage, pods=pods.uids
        )
        self.loops: Loops = {"audit": self._audit, "peaks": self.peaks.run, "memory limits": self.memory_limits.run}

    def conditions(self) -> tuple[Condition, ...]:
        return self.auditor.conditions if self.audited.is_set() else ()

    async def _audit(self) -> None:
        # The audit compares processes with the GPUs' modes, so these must be known first.
        await self._cluster.state.published.wait()
        # Until the pods are known, the node's endpoint reports the audit as incomplete, and the GPUNode keeps its last
        # condition. Otherwise a slow API server would make the condition of every node unknown and lose findings. If
        # the pods stay unknown, the condition says so, as nothing supports the previous agent's findings any more.
        last = time.monotonic() + STALE_SECONDS
        while not self._cluster.is_known and time.monotonic() < last:
            await self.auditor.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(auditor.SECONDS):
                    await self._cluster.synced()
        await self.auditor.step()
        self.audited.set()
        self._cluster.wake.status.set()
        await self.auditor.run()
