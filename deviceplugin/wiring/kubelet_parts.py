"""The kubelet's device plugins, and the injection of devices into containers."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection

from deviceplugin.denial import pod_denial
from deviceplugin.host import library
from deviceplugin.injection import arrival, cdi_specs, decision, runtime_inspection
from deviceplugin.kubelet import device_answers, plugin_registration, plugin_service, share_answers
from deviceplugin.state import advertisement, pod_resources
from deviceplugin.wiring.node_parts import ClusterParts, HardwareParts, Loops
from deviceplugin.wiring.share_parts import ShareParts
from gpushare import contract
from gpushare.gpunode import Condition


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KubeletParts:
    """The device plugins, and how containers get devices."""

    cluster: ClusterParts
    denied: pod_denial.PodDenial
    injecting: decision.NodeInjection
    arrivals: arrival.Arrivals
    specs: cdi_specs.Specs
    plugins: plugin_registration.Plugins
    old_libraries: library.OldLibraries

    @property
    def loops(self) -> Loops:
        return {
            "cdi": self._write_specs,
            "arrivals": self.arrivals.run,
            "plugins": self.plugins.run,
            "old libraries": self.old_libraries.run,
        }

    async def deny(self) -> None:
        """Deny the GPUs to unregistered processes, until cancelled."""
        # While the pods are unknown, the pods that are exempt are too, and the condition would be wrong.
        await self.cluster.pods.informer.synced.wait()
        await self.denied.run()

    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions about the injection of devices and about denial."""
        missing = self.arrivals.missing
        # Outside a pod, the agent cannot inspect its own container.
        shown = (
            (self.injecting.injection().condition_with(missing),) if self.cluster.settings.pod_uid or missing else ()
        )
        # Until the pods are known, keep the condition that the previous agent wrote.
        last = self.cluster.gpunode.now() if self.denied.is_on else None
        previous = last.condition(contract.CONDITION_UNREGISTERED_DENIED) if last is not None else None
        return (*shown, *(self.denied.conditions or ((previous,) if previous is not None else ())))

    async def _write_specs(self) -> None:
        await self.cluster.state.published.wait()
        await self.specs.run(self.cluster.state.advertised, self.injecting.settings)


def build(
    cluster: ClusterParts,
    hardware: HardwareParts,
    shares: ShareParts,
    installed: library.Installed,
    denied: pod_denial.PodDenial,
) -> KubeletParts:
    """Build the device plugins with the parts of their answers."""
    settings, state, pods = cluster.settings, cluster.state, cluster.pods
    injecting = decision.NodeInjection(
        state.in_force,
        runtime_inspection.inspect(settings, os.environ),
        runtime=cluster.configuration.runtime,
        pods=pods.all,
        pod_uid=settings.pod_uid,
    )
    written = cdi_specs.Specs(
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
        settings=injecting.settings,
        allocated=counters_allocated,
        stale_devices=share_answers.StaleAllocations(settings.kubelet_directory, living=pods.running_uids).count,
        start=share_answers.ShareStart(
            injection=injecting.injection,
            settings=injecting.settings,
            held=functools.partial(
                pod_resources.held_by_all,
                settings.pod_resources_socket,
                settings.kubelet_directory / pod_resources.CHECKPOINT_NAME,
                pods.all,
            ),
            find=shares.lookup.find_by_name,
            descriptions=written,
            denied=denied,
        ),
    )
    for_devices = device_answers.DeviceAnswers(
        injecting,
        nodes=hardware.nodes,
        mps=hardware.mps_daemons.files,
        memory_bytes=hardware.memory_bytes,
        scores=hardware.scores,
        described=written.renew,
        allocated=hardware.users.record_allocation,
    )

    def allocator(resource: str) -> plugin_service.ContainerAllocator:
        return for_shares if resource in advertisement.COUNTERS else for_devices

    return KubeletParts(
        cluster=cluster,
        denied=denied,
        injecting=injecting,
        arrivals=arrival.Arrivals(
            pods=pods.all,
            node=cluster.gpunode.now,
            identify=cluster.identify,
            warn=cluster.events.warn,
            changed=cluster.wake.status.set,
            proc=settings.proc_root,
        ),
        specs=written,
        plugins=plugin_registration.Plugins(
            state.advertised,
            answers=allocator,
            directory=settings.kubelet_directory,
            registered=state.registered,
            hung_up=state.hung_up,
        ),
        old_libraries=library.OldLibraries(installed.library, settings.root, pods=pods.known, proc=settings.proc_root),
    )
