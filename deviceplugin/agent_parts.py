"""All parts of an agent, built in order: each group takes the groups built before it, so dependencies point one way.

cluster → hardware → shares (all in `node_parts`) → kubelet → reports → modes. Information in the other direction
travels as observable values (`NodeState`) and as events that wake loops (`Wake`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Iterable
from typing import Final

from deviceplugin import node_parts
from deviceplugin.denial import pod_denial
from deviceplugin.hardware import nvml, partitioner
from deviceplugin.host import library
from deviceplugin.injection import arrival, cdi_specs, decision, runtime_inspection
from deviceplugin.kubelet import device_answers, plugin_registration, share_answers
from deviceplugin.link import arbiter
from deviceplugin.modes import mode_checkpoint, mode_reconciler, setup, transition
from deviceplugin.node_parts import ClusterParts, HardwareParts, Loops, ShareParts
from deviceplugin.report import agent_metrics, announcements, gpunode_status, node_writers, share_metrics
from deviceplugin.state import advertisement, pod_resources
from gpushare import contract
from gpushare.cluster import informer, object_store, retrying
from gpushare.daemon import probes
from gpushare.gpunode import Condition, Gpu
from gpushare.modes.hardware_gpu import HardwareGpu

AUDITED_SECONDS: Final = 5.0  # the first status waits this long for the first complete audit


class KubeletParts:
    """The device plugins, and how containers get devices."""

    def __init__(
        self,
        cluster: ClusterParts,
        hardware: HardwareParts,
        shares: ShareParts,
        installed: library.Installed,
        denied: pod_denial.PodDenial,
    ) -> None:
        settings, state, pods = cluster.settings, cluster.state, cluster.pods
        self._cluster, self.denied = cluster, denied
        self._injecting = decision.NodeInjection(
            state.in_force,
            runtime_inspection.inspect(settings, os.environ),
            runtime=cluster.configuration.runtime,
            pods=pods.all,
            pod_uid=settings.pod_uid,
        )
        self._specs = cdi_specs.Specs(
            settings.cdi_directory, gpus=hardware.gpus, nodes=hardware.nodes, in_use=hardware.users.has_devices
        )

        def counters_allocated(resource: str, ids: Collection[str]) -> None:
            hardware.users.record_allocation(resource, ids)
            devices = state.advertised.value.get(resource, ())
            # Wake the mode reconciler: it has to advertise the allocated counters as healthy.
            if not {device.id for device in devices if device.healthy}.issuperset(ids):
                cluster.wake.modes.set()

        for_shares = share_answers.ShareAnswers(
            share_answers.Mounts(installed.library, installed.preload_file, settings.run_directory),
            settings=self._injecting.settings,
            allocated=counters_allocated,
            stale_devices=share_answers.StaleAllocations(settings.kubelet_directory, living=pods.running_uids).count,
            start=share_answers.ShareStart(
                injection=self._injecting.injection,
                settings=self._injecting.settings,
                held=functools.partial(
                    pod_resources.held_by_all,
                    settings.pod_resources_socket,
                    settings.kubelet_directory / pod_resources.CHECKPOINT_NAME,
                    pods.all,
                ),
                find=shares.lookup.find_by_name,
                descriptions=self._specs,
                denied=denied,
                memory_limits=shares.memory_limits,
                mps=functools.partial(hardware.mps_shares.ready, has_processes=shares.arbiter.has_processes),
                mig=hardware.mig_shares,
                borrows=lambda: state.in_force.value.borrows,
                foreign=hardware.owners.foreign,
                by_cdi=lambda: bool(hardware.mig_shares.cut) or share_answers.have_own_devices(cluster.gpunode.now()),
            ),
        )
        for_devices = device_answers.DeviceAnswers(
            self._injecting,
            nodes=hardware.nodes,
            mps=hardware.mps_daemons.files,
            memory_bytes=hardware.memory_bytes,
            scores=hardware.scores,
            described=self._specs.renew,
            allocated=hardware.users.record_allocation,
        )
        self._arrivals = arrival.Arrivals(
            pods=pods.all,
            node=cluster.gpunode.now,
            identify=cluster.identify,
            warn=cluster.events.warn,
            changed=cluster.wake.status.set,
            proc=settings.proc_root,
        )
        self.plugins = plugin_registration.Plugins(
            state.advertised,
            answers=lambda resource: for_shares if resource in advertisement.COUNTERS else for_devices,
            directory=settings.kubelet_directory,
            registered=state.registered,
            hung_up=state.hung_up,
        )
        old = library.OldLibraries(installed.library, settings.root, pods=pods.known, proc=settings.proc_root)
        self.loops: Loops = {
            "cdi": self._write_specs,
            "arrivals": self._arrivals.run,
            "plugins": self.plugins.run,
            "old libraries": old.run,
        }

    @property
    def uses_cdi(self) -> bool:
        return self._injecting.injection().uses_cdi

    async def deny(self) -> None:
        # While the pods are unknown, the pods that are exempt are too, and the condition would be wrong.
        await self._cluster.pods.informer.synced.wait()
        await self.denied.run()

    def conditions(self) -> tuple[Condition, ...]:
        missing = self._arrivals.missing
        # Outside a pod, the agent cannot inspect its own container.
        is_shown = self._cluster.settings.pod_uid or missing
        shown = (self._injecting.injection().condition_with(missing),) if is_shown else ()
        # Until the pods are known, keep the condition that the previous agent wrote.
        last = self._cluster.gpunode.now() if self.denied.is_on else None
        previous = last.condition(contract.CONDITION_UNREGISTERED_DENIED) if last is not None else None
        return (*shown, *(self.denied.conditions or ((previous,) if previous is not None else ())))

    async def _write_specs(self) -> None:
        await self._cluster.state.published.wait()
        await self._specs.run(self._cluster.state.advertised, self._injecting.settings)


class ReportParts:
    """The writers of the GPUNode's status and the Node's labels and capacity, the Events and the metrics."""

    def __init__(
        self, cluster: ClusterParts, hardware: HardwareParts, shares: ShareParts, kubelet: KubeletParts
    ) -> None:
        state, name, api, node = cluster.state, cluster.name, cluster.api, cluster.gpunode
        self._state, self._offered = state, cluster.configuration.offered
        self._audited = shares.audited
        self._informed = hardware.observation.informed
        self.status = gpunode_status.GpuNodeStatus(
            api,
            node,
            state,
            wake=cluster.wake.status,
            resizes=shares.memory_limits.apply,
            partitions=hardware.mps_shares.partitions,
            audited=shares.conditions,
            injected=kubelet.conditions,
        )
        labels = node_writers.LabelWriter(
            api,
            node_name=name,
            wake=cluster.wake.labels,
            in_force=state.in_force,
            metadata=cluster.configuration.metadata,
            wanted=node_writers.WantedLabels(hardware.driver, hardware.observation, state.in_force).now,
        )
        self.capacity = node_writers.NodeCapacity(
            api, node_name=name, allocatable=state.allocatable, written=cluster.configuration.memory_capacity
        )
        startup = node_writers.StartupTaints(
            api, node_name=name, taints=cluster.configuration.taints, is_ready=self._is_reported
        )
        cluster.configuration.node.subscribe(lambda _: startup.wake.set())
        holders = share_metrics.DeviceHolders(
            hardware.users, hardware=hardware.gpus, gpus=state.seen, in_force=state.in_force
        )
        announcer = announcements.HealthAnnouncer(
            cluster.events, hardware.users, gpus=state.gpus, unread=state.unread, node=node.now, gpu_of=hardware.gpu_of
        )

        def snapshot() -> agent_metrics.MetricsSnapshot:
            parents = hardware.mig_shares.parents
            return agent_metrics.MetricsSnapshot(
                gpus=node_parts.as_given(state.gpus.gpus),
                unread=state.unread.value,
                node=node.now(),
                uses=tuple(
                    dataclasses.replace(use, tenant=use.tenant.on_gpus(parents)) for use in shares.running.uses()
                ),
                leases=tuple(
                    dataclasses.replace(
                        lease,
                        tenant=lease.tenant.on_gpus(parents),
                        gpu_uuid=parents.get(lease.gpu_uuid, lease.gpu_uuid),
                    )
                    for lease in shares.running.lease_usage()
                ),
                by_driver=shares.auditor.used,
                holders=holders.all(),
                audit=shares.auditor.audit,
                peaks=shares.peaks.all,
                connections=shares.arbiter.reported.connections,
                turned_away=shares.arbiter.reported.turned_away,
                versions=dict(shares.arbiter.reported.versions),
            )

        self.metrics = agent_metrics.AgentCollector(name, snapshot)
        self.loops: Loops = {
            "status": self._write_status,
            "labels": labels.run,
            "taints": startup.run,
            "events": cluster.recorder.run,
            "announcements": announcer.run,
            "holders": holders.run,
            "capacity": self.capacity.run,
        }

    def _is_reported(self) -> bool:
        """Whether the GPUNode has the GPUs, the kubelet the plugins, and the Node the resources, some seconds later."""
        state = self._state
        is_registered = state.advertised.value.keys() <= state.registered.value
        wanted = node_writers.resources(state.advertised.value, state.allocatable.value)
        return self.status.written and is_registered and wanted <= self._offered()

    async def _write_status(self) -> None:
        # The first status must contain the GPUs' modes, and, if possible, the audit: a thousand agents that start
        # should not write twice each.
        await self._state.published.wait()
        await retrying.wait(self._audited, AUDITED_SECONDS)
        await self.status.run(self._informed)


class ModeParts:
    """The reconciler of the GPUs' modes."""

    def __init__(
        self, cluster: ClusterParts, hardware: HardwareParts, kubelet: KubeletParts, reports: ReportParts
    ) -> None:
        self._cluster = cluster

        def with_isolations(gpu: HardwareGpu, partitions: int) -> HardwareGpu:
            seen = hardware.gpu(gpu.uuid)
            # A container gets its MIG device, or the pipe of its GPU's daemon, by the CDI description of its share.
            if seen is None or not kubelet.uses_cdi or cluster.state.in_force.value.borrows:
                return gpu
            count = hardware.mps_shares.partitions(gpu.uuid, partitions)
            is_cut = gpu.can_partition and hardware.mps_shares.can_cut(gpu.uuid, count)
            by_mps = hardware.mps_shares.can_share(gpu, seen.compute_capability) and (is_cut or not count)
            return transition.with_isolations(
                dataclasses.replace(gpu, can_partition=is_cut),
                by_mps=by_mps,
                by_mig=hardware.mig_shares.can_share(gpu),
                only_mig=hardware.mig_shares.is_stuck(gpu.uuid),
                partitions=count if is_cut else 0,
            )

        def measure(gpus: Iterable[Gpu]) -> advertisement.Allocatable:
            if not cluster.is_known:
                return advertisement.while_unknown(gpus, hardware.users.allocated_ids)
            return advertisement.allocatable(gpus, cluster.gpunode.now(), cluster.pods.all())

        def held() -> frozenset[str]:
            return hardware.users.in_use() | hardware.mig_shares.parents.keys()

        self._allocatable = advertisement.DelayedDecrease(measure)
        driver, changed = hardware.driver, hardware.observation.refresh
        self.reconciler = mode_reconciler.ModeReconciler(
            cluster.configuration,
            cluster.gpunode,
            reports.status.settled,
            cluster.events,
            hardware.observation,
            cluster.state,
            wake=cluster.wake.modes,
            gpu_users=hardware.users,
            mode_setup=setup.ModeSetup(
                setup.ComputeModePart(driver, hardware.mig, changed),
                setup.MigPart(driver, partitioner.Partitioner(hardware.mig), changed, held),
                setup.TimeSlicePart(),
                setup.MpsPart(hardware.mps_daemons, gpu_of=hardware.gpu),
                setup.MigSharesPart(hardware.mig_shares.merge),
            ),
            path=cluster.settings.root / mode_checkpoint.NAME,
            options=cluster.settings.options,
            allocatable=self._allocatable,
            mps_problem=hardware.mps_daemons.problem,
            with_isolations=with_isolations,
            owner_of=hardware.owners.of,
        )
        self.loops: Loops = {"modes": self.reconciler.run}

    def recount(self) -> None:
        state = self._cluster.state
        if self._allocatable(state.gpus.gpus) != state.allocatable.value:
            self._cluster.wake.modes.set()


class AgentParts:
    """All groups. Changes of watched objects wake the parts that depend on them. `agent` starts the `loops`."""

    def __init__(
        self,
        cluster: ClusterParts,
        opened: nvml.Nvml,
        process: arbiter.ArbiterProcess,
        *,
        installed: library.Installed,
        denied: pod_denial.PodDenial,
    ) -> None:
        self.process, self.cluster = process, cluster
        self.hardware = hardware = HardwareParts(cluster, opened)
        self.shares = shares = ShareParts(cluster, hardware, process)
        self.kubelet = kubelet = KubeletParts(cluster, hardware, shares, installed, denied)
        self.reports = reports = ReportParts(cluster, hardware, shares, kubelet)
        self.modes = modes = ModeParts(cluster, hardware, kubelet, reports)
        self.loops: Loops = {**hardware.loops, **modes.loops, **reports.loops, **kubelet.loops, **shares.loops}

        def pods_changed(_: object_store.Delta) -> None:
            cluster.wake.all()
            hardware.owners_wake.set()
            modes.recount()

        def gpunode_changed(_: object_store.Delta) -> None:
            modes.recount()
            shares.memory_limits.refresh()
            hardware.mig_shares.wake.set()
            hardware.owners_wake.set()

        cluster.pods.informer.subscribe(pods_changed)
        cluster.gpunode.informer.subscribe(gpunode_changed)
        cluster.configuration.node.subscribe(lambda _: reports.capacity.wake.set())

    def checks(self) -> dict[str, probes.Check]:
        cluster, status, name = self.cluster, self.reports.status, self.cluster.name
        configuration, pods = cluster.configuration, cluster.pods.informer
        informers = (cluster.gpunode.informer, pods, *configuration.informers)
        return {
            "arbiter": lambda: self.shares.arbiter.problem,
            "gpus": self.hardware.unreadable,
            "kubelet": lambda: self.kubelet.plugins.problem or None,
            "gpunode": lambda: None if status.written else f"the GPUNode {name} is not written yet",
            "pods": lambda: None if pods.synced.is_set() else "the pods of this node are not known yet",
            "configuration": lambda: None if configuration.is_known else "the node's configuration is not known yet",
            "api": lambda: informer.stale_reason(informers, longest_seconds=node_parts.STALE_SECONDS),
        }
