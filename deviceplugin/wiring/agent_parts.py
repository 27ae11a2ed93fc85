"""All parts of an agent, built in order: each builder takes the groups built before it, so dependencies point one way.

cluster → hardware → shares → kubelet → reports → modes

Information in the other direction travels as observable values (`NodeState`) and as events that wake loops (`Wake`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Final

from deviceplugin.denial import pod_denial
from deviceplugin.disk import library
from deviceplugin.hardware import nvml
from deviceplugin.labels import node_labels
from deviceplugin.link import arbiter
from deviceplugin.mig import partitioner
from deviceplugin.modes import mode_checkpoint, mode_reconciler, setup, setup_parts
from deviceplugin.report import agent_metrics, announcements, device_holders
from deviceplugin.report.gpunode_status import GpuNodeStatus
from deviceplugin.report.node_capacity import NodeCapacity
from deviceplugin.state import allocatable
from deviceplugin.wiring import kubelet_parts, node_parts, share_parts
from deviceplugin.wiring.kubelet_parts import KubeletParts
from deviceplugin.wiring.node_parts import ClusterParts, HardwareParts, Loops
from deviceplugin.wiring.share_parts import ShareParts
from gpushare.cluster import informer, object_store
from gpushare.daemon import probes
from gpushare.gpu import Gpu

AUDITED_SECONDS: Final = 5.0  # the first status waits this long for the first complete audit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportParts:
    """The reports to the cluster and to Prometheus."""

    cluster: ClusterParts
    hardware: HardwareParts
    shares: ShareParts
    status: GpuNodeStatus
    labels: node_labels.LabelWriter
    capacity: NodeCapacity
    holders: device_holders.DeviceHolders
    announcer: announcements.HealthAnnouncer
    metrics: agent_metrics.AgentCollector

    @property
    def loops(self) -> Loops:
        return {
            "status": self._write_status,
            "labels": self.labels.run,
            "events": self.cluster.recorder.run,
            "announcements": self.announcer.run,
            "holders": self.holders.run,
            "capacity": self.capacity.run,
        }

    async def _write_status(self) -> None:
        # The first status must contain the GPUs' modes, and, if possible, the audit: a thousand agents that start
        # should not write twice each.
        await self.cluster.state.published.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AUDITED_SECONDS):
                await self.shares.audited.wait()
        await self.status.run(self.hardware.observation.informed)


def build_reports(
    cluster: ClusterParts, hardware: HardwareParts, shares: ShareParts, kubelet: KubeletParts
) -> ReportParts:
    """Build the writers of the GPUNode's status and the Node's labels and capacity, the Events and the metrics."""
    state, name, api = cluster.state, cluster.settings.node_name, cluster.api
    holders = device_holders.DeviceHolders(
        hardware.users, hardware=hardware.gpus, gpus=state.seen, in_force=state.in_force
    )

    def snapshot() -> agent_metrics.MetricsSnapshot:
        return agent_metrics.MetricsSnapshot(
            gpus=state.gpus.gpus,
            unread=state.unread.value,
            node=cluster.gpunode.now(),
            uses=tuple(shares.running.uses()),
            leases=tuple(shares.running.lease_usage()),
            by_driver=shares.auditor.used,
            holders=holders.all(),
            audit=shares.auditor.audit,
            peaks=shares.peaks.all,
            connections=shares.arbiter.connections(),
            turned_away=shares.arbiter.turned_away(),
            versions=shares.arbiter.versions(),
        )

    return ReportParts(
        cluster=cluster,
        hardware=hardware,
        shares=shares,
        status=GpuNodeStatus(
            api,
            cluster.gpunode,
            state,
            wake=cluster.wake.status,
            resizes=shares.arbiter.apply,
            audited=shares.conditions,
            injected=kubelet.conditions,
        ),
        labels=node_labels.LabelWriter(
            api,
            node_name=name,
            wake=cluster.wake.labels,
            in_force=state.in_force,
            metadata=cluster.configuration.metadata,
            wanted=node_labels.WantedLabels(hardware.driver, hardware.observation, state.in_force).now,
        ),
        capacity=NodeCapacity(
            api, node_name=name, allocatable=state.allocatable, written=cluster.configuration.memory_capacity
        ),
        holders=holders,
        announcer=announcements.HealthAnnouncer(
            cluster.events,
            hardware.users,
            gpus=state.gpus,
            unread=state.unread,
            node=cluster.gpunode.now,
            gpu_of=hardware.gpu_of,
        ),
        metrics=agent_metrics.AgentCollector(name, snapshot),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModeParts:
    """The reconciler of the GPUs' modes."""

    cluster: ClusterParts
    reconciler: mode_reconciler.ModeReconciler
    allocatable: allocatable.DelayedDecrease

    @property
    def loops(self) -> Loops:
        return {"modes": self.reconciler.run}

    def recount(self) -> None:
        """Wake the reconciler if the allocatable amount has changed."""
        state = self.cluster.state
        if self.allocatable(state.gpus.gpus) != state.allocatable.value:
            self.cluster.wake.modes.set()


def build_modes(cluster: ClusterParts, hardware: HardwareParts, reports: ReportParts) -> ModeParts:
    """Build the reconciler of the GPUs' modes."""

    def measure(gpus: Iterable[Gpu]) -> allocatable.Allocatable:
        if not cluster.is_known:
            return allocatable.while_unknown(gpus, hardware.users.allocated_ids)
        return allocatable.allocatable(gpus, cluster.gpunode.now(), cluster.pods.all())

    delayed = allocatable.DelayedDecrease(measure)
    driver, changed = hardware.driver, hardware.observation.refresh
    mode_setup = setup.ModeSetup(
        setup_parts.ComputeModePart(driver, hardware.mig, changed),
        setup_parts.MigPart(driver, partitioner.Partitioner(hardware.mig), changed, hardware.users.in_use),
        setup_parts.TimeSlicePart(),
        setup_parts.MpsPart(hardware.mps_daemons, gpu_of=hardware.gpu),
    )
    return ModeParts(
        cluster=cluster,
        reconciler=mode_reconciler.ModeReconciler(
            cluster.configuration,
            cluster.gpunode,
            reports.status,
            cluster.events,
            hardware.observation,
            cluster.state,
            wake=cluster.wake.modes,
            gpu_users=hardware.users,
            mode_setup=mode_setup,
            path=cluster.settings.root / mode_checkpoint.NAME,
            options=cluster.settings.options,
            allocatable=delayed,
            mps_problem=hardware.mps_daemons.problem,
        ),
        allocatable=delayed,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """All groups. `agent` starts their loops."""

    process: arbiter.ArbiterProcess
    cluster: ClusterParts
    hardware: HardwareParts
    shares: ShareParts
    kubelet: KubeletParts
    reports: ReportParts
    modes: ModeParts

    @property
    def loops(self) -> Loops:
        """The loops that start once the GPUs have been observed."""
        groups = (self.hardware, self.modes, self.reports, self.kubelet, self.shares)
        return {name: loop for group in groups for name, loop in group.loops.items()}

    def checks(self) -> dict[str, probes.Check]:
        """Return the readiness checks, by name."""
        cluster, status, name = self.cluster, self.reports.status, self.cluster.settings.node_name
        configuration, pods = cluster.configuration, cluster.pods.informer
        informers = (cluster.gpunode.informer, pods, *configuration.informers)
        return {
            "arbiter": lambda: self.shares.arbiter.problem,
            "gpus": self.hardware.unreadable,
            "kubelet": lambda: self.kubelet.plugins.problem or None,
            "gpunode": lambda: None if status.written else f"the GPUNode {name} is not written yet",
            "pods": lambda: None if pods.synced.is_set() else "the pods of this node are not known yet",
            "configuration": lambda: None if configuration.is_known else "the node's configuration is not known yet",
            "api": lambda: informer.stale_reason(informers, longest_seconds=share_parts.STALE_SECONDS),
        }


def build(
    cluster: ClusterParts,
    opened: nvml.Nvml,
    process: arbiter.ArbiterProcess,
    *,
    installed: library.Installed,
    denied: pod_denial.PodDenial,
) -> AgentParts:
    """Build all groups, and have changes of watched objects wake the parts that depend on them."""
    hardware = node_parts.build_hardware(cluster, opened)
    shares = share_parts.build(cluster, hardware, process)
    kubelet = kubelet_parts.build(cluster, hardware, shares, installed, denied)
    reports = build_reports(cluster, hardware, shares, kubelet)
    modes = build_modes(cluster, hardware, reports)

    def pods_changed(_: object_store.Delta) -> None:
        cluster.wake.all()
        modes.recount()

    def gpunode_changed(_: object_store.Delta) -> None:
        modes.recount()
        shares.arbiter.refresh()

    cluster.pods.informer.subscribe(pods_changed)
    cluster.gpunode.informer.subscribe(gpunode_changed)
    cluster.configuration.node.subscribe(lambda _: reports.capacity.check())
    return AgentParts(
        process=process,
        cluster=cluster,
        hardware=hardware,
        shares=shares,
        kubelet=kubelet,
        reports=reports,
        modes=modes,
    )
