"""The parts of an agent, put together: each is made of those above it, and nothing is given to one later.

What goes the other way goes by values that are followed (`NodeState`) and by events that loops wait for (`Wake`).
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin import node_pods
from deviceplugin.agent_settings import AgentSettings
from deviceplugin.allocation import answer, joined
from deviceplugin.arbiter import socket_server
from deviceplugin.audit import auditor, contexts, unclaimed_memory
from deviceplugin.cdi import specs
from deviceplugin.denial import pod_denial
from deviceplugin.disk import library, old_libraries
from deviceplugin.hardware import device_nodes, faults, nvml, nvml_mig, observation, xid
from deviceplugin.hardware.driver import Driver
from deviceplugin.injection import arrival, in_force, runtime_inspection
from deviceplugin.kubelet import device_answers, left_behind, plugin_service, plugins, share_answers, share_start
from deviceplugin.labels import wanted, writer
from deviceplugin.link import arbiter, arbiter_process, lookup
from deviceplugin.link.running_shares import Shares
from deviceplugin.mig import partitioner
from deviceplugin.modes import cluster_config, compute_part, gpu_users, mig_part, mode_reconciler, setup
from deviceplugin.modes.mps_part import MpsPart
from deviceplugin.mps import daemons
from deviceplugin.report import agent_metrics, announcing, device_holders, refused_libraries, share_peaks
from deviceplugin.report.gpunode_status import GpuNodeStatus
from deviceplugin.report.node_capacity import NodeCapacity
from deviceplugin.state import advertisement, allocatable, kubelet_checkpoint, node_state, pod_resources
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.wake import Wake
from gpushare import contract
from gpushare.cluster import api_client, events, object_store
from gpushare.gpu import Gpu
from gpushare.gpunode import Condition, GpuNode
from gpushare.modes.hardware_gpu import HardwareGpu

BOOK: Final = "modes.json"


class AgentParts:
    """All of them; `agent` says in which order they are started."""

    def __init__(
        self,
        settings: AgentSettings,
        api: api_client.ApiClient,
        opened: nvml.Nvml,
        installed: library.Installed,
        running: arbiter_process.ArbiterProcess,
        *,
        pods: node_pods.NodePods,
        wake: Wake,
        denied: pod_denial.PodDenial,
    ) -> None:
        name, proc = settings.node_name, settings.proc_root
        self._settings, self._wake = settings, wake
        self.running, self.denied = running, denied
        self.audited = asyncio.Event()  # set once an audit may be told in the GPUNode
        self.pods, self.state, self.driver = pods, node_state.NodeState(), Driver(opened)
        identify = socket_server.by_cgroup(proc)

        # What is read from the cluster, and reported to it.
        self.gpunode = GpuNodeCopy(api, node_name=name, wake=wake.status)
        self.configuration = cluster_config.Configuration(
            api, node_name=name, config_map=settings.config_map, changed=wake.all
        )
        self.recorder = events.Recorder(api, controller=f"{contract.PREFIX}agent", instance=name)
        node_events = announcing.NodeEvents(self.recorder, self.gpunode, pods=pods.all)

        # What the hardware and the kubelet say.
        self.observation = observation.Observation(
            self.driver,
            seen=self.state.seen,
            unread=self.state.unread,
            node=self.gpunode.now,
            known=self.gpunode.informer.synced,
            notebook=faults.Notebook(settings.state_directory, proc=proc),
            changed=wake.all,
            ignored=xid.filter_of(os.environ),
            proc=proc,
            roots=(Path("/"), settings.container_driver_root),
        )
        self.witness = gpu_users.GpuUsers(
            self.driver,
            pod_resources_socket=settings.pod_resources_socket,
            pods=pods.all,
            proc=proc,
            identify=identify,
            ours=lambda: self.daemons.pids(),
            kept=settings.kubelet_directory / kubelet_checkpoint.NAME,
        )
        self.holders = device_holders.DeviceHolders(
            self.witness, hardware=self._discovered, gpus=self.state.seen, in_force=self.state.in_force
        )
        self.announcer = announcing.Announcer(
            node_events,
            self.witness,
            gpus=self.state.gpus,
            unread=self.state.unread,
            node=self.gpunode.now,
            gpu_of=self._gpu_of,
        )

        # The shares: the arbiter, and who looks after it.
        self.lookup = lookup.Lookup(
            pods=pods.all, node=self.gpunode.now, ask_pods=pods.ask, ask_node=self.gpunode.refreshed
        )
        sizes = contexts.ContextSizes(
            contexts.ContextCheckpoint(settings.root, until_learned_bytes=settings.context_memory_bytes),
            self.state.gpus,
            driver_version=opened.version(),
        )
        shares = Shares()
        self.arbiter = arbiter.Arbiter(
            running.channel,
            lookup=self.lookup,
            node=self.gpunode.now,
            tell=wake.status.set,
            context_bytes=sizes.bytes_on,
            unclaimed_bytes=functools.partial(unclaimed_memory.ask, self.driver, shares),
            refused=refused_libraries.RefusedLibraries(pods.all, node_events.warn).refused,
            shares=shares,
        )
        self.auditor = auditor.Auditor(
            self.driver,
            self.arbiter,
            sizes,
            gpus=self.state.gpus,
            node=self._known_node,
            pods=pods.all,
            warn=node_events.warn,
            changed=wake.status.set,
            node_name=name,
            identify=identify,
            ends=settings.end_unlimited,
            proc=proc,
        )

        # How containers get their devices, and what the GPUNode says of it all.
        self.injecting = in_force.Injecting(
            self.state.in_force,
            runtime_inspection.look(settings, os.environ),
            runtime=self.configuration.runtime,
            pods=pods.all,
            pod_uid=settings.pod_uid,
        )
        self.arrivals = arrival.Arrivals(
            pods=pods.all,
            node=self.gpunode.now,
            identify=identify,
            warn=node_events.warn,
            changed=wake.status.set,
            proc=proc,
        )
        self.status = GpuNodeStatus(
            api,
            self.gpunode,
            self.state,
            wake=wake.status,
            resizes=self.arbiter.apply,
            audited=lambda: self.auditor.conditions if self.audited.is_set() else (),
            injected=self._injected,
        )

        # What the GPUs are used for.
        cutting = nvml_mig.MigDriver(opened)
        self.daemons = daemons.Daemons(
            root=settings.mps_root,
            program=settings.mps_program,
            exclusive=functools.partial(_exclusive, self.driver, cutting),
            changed=wake.all,
        )
        self._allocatable = allocatable.Stabilized(self._what_is_allocatable)
        self.reconciler = mode_reconciler.ModeReconciler(
            self.configuration,
            self.gpunode,
            self.status,
            node_events,
            self.observation,
            self.state,
            wake=wake.modes,
            witness=self.witness,
            set_up=setup.SetUp(
                compute_part.ComputePart(self.driver, cutting, self.observation.look),
                mig_part.MigPart(
                    self.driver, partitioner.Partitioner(cutting), self.observation.look, self.witness.in_use
                ),
                setup.TimeSlices(),
                MpsPart(self.daemons, gpu_of=self._gpu),
            ),
            path=settings.root / BOOK,
            options=settings.options,
            allocatable=self._allocatable,
            failure=self.daemons.problem,
        )

        # Labels of the Node, and devices for the kubelet.
        self.labels = writer.LabelWriter(
            api,
            node_name=name,
            wake=wake.labels,
            in_force=self.state.in_force,
            metadata=self.configuration.metadata,
            wanted=wanted.WantedLabels(self.driver, self.observation, self.state.in_force).now,
        )
        self.capacity = NodeCapacity(
            api,
            node_name=name,
            allocatable=self.state.allocatable,
            written=self.configuration.memory_capacity,
        )
        self.specs = specs.Specs(
            settings.cdi_directory, gpus=self._discovered, nodes=self._nodes, in_use=self.witness.has_devices
        )
        self._share_answers = share_answers.ShareAnswers(
            share_answers.Mounts(installed.library, installed.preload_file, settings.run_directory),
            settings=self.injecting.settings,
            allocated=self._counters_allocated,
            left_behind=left_behind.LeftBehind(settings.kubelet_directory, living=pods.living).count,
            start=share_start.ShareStart(
                injection=self.injecting.injection,
                settings=self.injecting.settings,
                held=functools.partial(
                    pod_resources.held_by_all,
                    settings.pod_resources_socket,
                    settings.kubelet_directory / kubelet_checkpoint.NAME,
                    pods.all,
                ),
                find=self.lookup.find_by_name,
                descriptions=self.specs,
                denied=denied,
            ),
        )
        self._device_answers = device_answers.DeviceAnswers(
            self.injecting,
            nodes=self._nodes,
            mps=self.daemons.places,
            memory_bytes=self._memory_bytes,
            scores=self._scores,
            described=self.specs.renew,
            allocated=self.witness.gave,
        )
        self.plugins = plugins.Plugins(
            self.state.advertised,
            answers=self._answers,
            directory=settings.kubelet_directory,
            registered=self.state.registered,
            hung_up=self.state.hung_up,
        )

        # What is kept for the next agent, and what Prometheus is told.
        self.peaks = share_peaks.Peaks(
            settings.state_directory, uses=shares.uses, leases=shares.lease_usage, pods=pods.uids
        )
        self.old_libraries = old_libraries.OldLibraries(installed.library, settings.root, pods=pods.known, proc=proc)
        self.metrics = agent_metrics.AgentCollector(
            node_name=name,
            offer=self.state.gpus,
            unread=lambda: self.state.unread.value,
            node=self.gpunode.now,
            uses=shares.uses,
            connections=self.arbiter.connections,
            turned_away=self.arbiter.turned_away,
            versions=self.arbiter.versions,
            holders=self.holders.all,
            leases=shares.lease_usage,
            audit=lambda: self.auditor.audit,
            by_driver=lambda: self.auditor.used,
            peaked=lambda: self.peaks.all,
        )

        # Whoever of the cluster changes wakes those who go by it.
        pods.informer.subscribe(self._pods_changed)
        self.gpunode.informer.subscribe(self._gpunode_changed)
        self.configuration.node.subscribe(lambda _: self.capacity.look())

    @property
    def is_known(self) -> bool:
        """Whether the GPUNode, be there none, and the pods of this node are what the cluster says."""
        return self.gpunode.informer.synced.is_set() and self.pods.informer.synced.is_set()

    def unreadable(self) -> str | None:
        """Why not one GPU of this node can be read; None where one can, or where there is none."""
        unread = self.state.unread.value
        return None if self.state.seen.gpus or not unread else "; ".join(map(str, unread))

    def tell_audit(self) -> None:
        """Have the GPUNode say from now on what the audit found, and no longer what the last agent said."""
        self.audited.set()
        self._wake.status.set()

    def _what_is_allocatable(self, gpus: Iterable[Gpu]) -> allocatable.Allocatable:
        if self._known_node() is None:
            return allocatable.while_unknown(gpus, self.witness.allocated_ids)
        return allocatable.allocatable(gpus, self.gpunode.now(), self.pods.all())

    def _pods_changed(self, _: object_store.Delta) -> None:
        self._wake.all()
        self._count()

    def _gpunode_changed(self, _: object_store.Delta) -> None:
        self._count()
        self.arbiter.refresh()

    def _count(self) -> None:
        if self._allocatable(self.state.gpus.gpus) != self.state.allocatable.value:
            self._wake.modes.set()

    def _known_node(self) -> GpuNode | None:
        """The GPUNode, an empty one where there is none yet; None while it or the pods are not known."""
        if not self.is_known:
            return None
        return self.gpunode.now() or GpuNode(self._settings.node_name)

    def _injected(self) -> tuple[Condition, ...]:
        """Of an agent beside the cluster, which has no container, nothing is known; that is nobody's trouble."""
        missing = self.arrivals.missing
        shown = (self.injecting.injection().shown(missing),) if self._settings.pod_uid or missing else ()
        # Before the pods are known nothing is said of them, and what the last agent has said stands.
        last = self.gpunode.now() if self.denied.is_on else None
        stands = last.condition(contract.CONDITION_UNREGISTERED_DENIED) if last is not None else None
        return (*shown, *(self.denied.conditions or ((stands,) if stands is not None else ())))

    def _answers(self, resource: str) -> plugin_service.ContainerAllocator:
        return self._share_answers if resource in advertisement.COUNTERS else self._device_answers

    def _counters_allocated(self, resource: str, ids: Collection[str]) -> None:
        """A container was given these. Of some of them the kubelet may be about to hear that they are not healthy."""
        self.witness.gave(resource, ids)
        devices = self.state.advertised.value.get(resource, ())
        if not {device.id for device in devices if device.healthy}.issuperset(ids):
            self._wake.modes.set()

    def _discovered(self) -> tuple[HardwareGpu, ...]:
        return self.observation.hardware_gpus

    def _gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.state.seen.gpus if gpu.uuid == uuid), None)

    def _memory_bytes(self, uuid: str) -> int:
        return gpu.memory_bytes if (gpu := self._gpu(uuid)) is not None else 0

    def _scores(self) -> Mapping[tuple[str, str], int]:
        return joined.scores(self.state.gpus.gpus, self.observation.paths)

    def _nodes(self) -> answer.Nodes:
        root = Path(self.state.in_force.value.settings.container_driver_root)
        return device_nodes.nodes(self.observation.minors, roots=(Path("/"), root), parts=self.observation.parts)

    def _gpu_of(self) -> dict[str, str]:
        return {
            uuid: gpu.uuid
            for gpu in self.observation.hardware_gpus
            for uuid in (gpu.uuid, *(device.uuid for device in gpu.mig_devices))
        }


async def _exclusive(driver: Driver, cutting: nvml_mig.MigDriver, uuid: str, exclusive: bool) -> None:
    await driver.ask(cutting.set_exclusive_process, uuid, exclusive=exclusive)
