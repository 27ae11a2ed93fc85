"""The GPUs of this node from the driver to everyone who follows them, wired together: what there is, what it is used
for, what the kubelet and the cluster are told of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from deviceplugin import allocatable, announcer, device_holders, library
from deviceplugin.agent_settings import AgentSettings
from deviceplugin.allocation import answer, joined
from deviceplugin.arbiter import socket_server, tenant
from deviceplugin.cdi import specs
from deviceplugin.denial import covering
from deviceplugin.gpunode_status import GpuNodeStatus, Statement
from deviceplugin.hardware import device_nodes, faults, nvml, nvml_call, nvml_mig, observation, xid
from deviceplugin.hardware.driver import Driver
from deviceplugin.injection import arrival, in_force, runtime_inspection
from deviceplugin.kubelet import (
    advertisement,
    checkpoint,
    device_answers,
    plugin_service,
    pod_resources,
    share_answers,
    share_start,
)
from deviceplugin.labels import gpu_resources, label_facts, whole, words, writer
from deviceplugin.live import (
    cluster_config,
    cluster_view,
    compute_part,
    gpu_users,
    mig_part,
    mode_reconciler,
    setup,
    surroundings,
)
from deviceplugin.mig import partitioner
from deviceplugin.mps import daemons
from deviceplugin.mps.mps_part import MpsPart
from deviceplugin.offer import Observable, Offer
from gpushare import contract
from gpushare.cluster import api_client, events
from gpushare.gpu import Gpu
from gpushare.gpunode import Condition, GpuNode
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

BOOK: Final = "modes.json"
AUDITED_SECONDS: Final = 5.0


class NodeParts:
    """What the agent knows of its GPUs. `offer` and `advertised` are what others follow; `pods` those of the node."""

    def __init__(
        self,
        settings: AgentSettings,
        api: api_client.ApiClient,
        opened: nvml.Nvml,
        installed: library.Installed,
        *,
        pods: Callable[[], Iterable[PodJson]],
        denied: covering.Covering,
    ) -> None:
        self._settings = settings
        self._started = int(time.time())
        name = settings.node_name
        self.offer = Offer()
        self.audited = asyncio.Event()  # set by whoever audits, after the first time
        self.advertised: Observable[advertisement.Advertisement] = Observable({})
        self.allocatable: Observable[allocatable.Allocatable] = Observable({})
        self._allocatable = allocatable.Stabilized(lambda gpus: allocatable.allocatable(gpus, self.node, pods()))
        statement = Observable(Statement())
        self.driver = Driver(opened)
        self._seen = Offer()
        self.status = GpuNodeStatus(api, node_name=name, offer=self.offer, statement=statement)
        self.observation = observation.Observation(
            self.driver,
            seen=self._seen,
            node=lambda: self.status.node,
            known=self.status.informer.synced,
            notebook=faults.Notebook(settings.state_directory, proc=settings.proc_root),
            ignored=xid.filter_of(os.environ),
            proc=settings.proc_root,
        )
        self.configuration = cluster_config.Configuration(
            api, node_name=name, config_map=settings.config_map, changed=self.look
        )
        self._recorder = events.Recorder(api, controller=f"{contract.PREFIX}agent", instance=name)
        self._cluster = cluster_view.ClusterView(self.configuration, self.status, self._recorder)
        self.witness = gpu_users.GpuUsers(
            self.driver,
            pod_resources_socket=settings.pod_resources_socket,
            pods=pods,
            proc=settings.proc_root,
            kept=settings.kubelet_directory / checkpoint.NAME,
        )
        self.holders = device_holders.DeviceHolders(
            self.witness,
            cards=lambda: self.observation.card_list,
            memory=lambda: {card.uuid: card.memory_bytes for card in self._seen.gpus},
            offered=lambda: self.applying.offered,
        )
        self.announcer = announcer.Announcer(
            self._cluster, self.witness, offer=self.offer, node=lambda: self.node, pods=pods, gpu_of=self._gpu_of
        )
        cutting = nvml_mig.MigDriver(opened)
        self._daemons = daemons.Daemons(
            root=settings.mps_root,
            program=settings.mps_program,
            exclusive=lambda uuid, on: self.driver.ask(cutting.set_exclusive_process, uuid, exclusive=on),
            changed=self.look,
        )
        self.applying = mode_reconciler.ModeReconciler(
            self._cluster,
            surroundings.Hardware(self._seen, lambda: self.observation.card_list, self._ill),
            surroundings.Published(self.offer, self.allocatable, self.advertised, statement),
            witness=self.witness,
            set_up=setup.SetUp(
                compute_part.ComputePart(self.driver, cutting, self.observation.look),
                mig_part.MigPart(
                    self.driver, partitioner.Partitioner(cutting), self.observation.look, lambda: self.witness.in_use
                ),
                setup.TimeSlices(),
                MpsPart(self._daemons, gpu_of=self._gpu),
            ),
            path=settings.root / BOOK,
            options=settings.options,
            allocatable=self._allocatable,
        )
        self.observation.changed = self.look
        self._labels = writer.LabelWriter(
            api, node_name=name, metadata=lambda: self.configuration.metadata, wanted=self._wanted_labels
        )
        self._specs = specs.Specs(
            settings.cdi_directory,
            cards=lambda: self.observation.card_list,
            nodes=self._nodes,
            in_use=lambda: any(one.resource not in advertisement.COUNTERS for one in self.witness.held),
        )
        self.injecting = in_force.Injecting(
            self.applying,
            runtime_inspection.look(settings, os.environ),
            runtime=lambda: self.configuration.runtime,
            pods=pods,
            pod_uid=settings.pod_uid,
        )
        self.arrivals = arrival.Arrivals(
            pods=pods,
            node=lambda: self.node,
            identify=socket_server.by_cgroup(settings.proc_root),
            warn=self.announcer.warn,
            changed=self.status.look,
            proc=settings.proc_root,
        )
        self.status.injected = self._injected
        self._denied = denied
        denied.begin(pods=pods, changed=self.status.look)
        self.given: Callable[[str, str, str], Awaitable[tenant.Given | Refusal]] = _nothing_given
        mounts = share_answers.Mounts(installed.library, installed.preload_file, settings.run_directory)
        self._share_answers = share_answers.ShareAnswers(
            mounts,
            settings=lambda: self.injecting.settings,
            given=self._counters_given,
            start=share_start.ShareStart(
                injection=lambda: self.injecting.injection,
                settings=lambda: self.injecting.settings,
                held=lambda: pod_resources.held(settings.pod_resources_socket),
                given=lambda *names: self.given(*names),
                descriptions=self._specs,
                denied=denied,
            ),
        )
        self._device_answers = device_answers.DeviceAnswers(
            self.injecting,
            nodes=self._nodes,
            mps=self._daemons.places,
            memory_bytes=lambda uuid: one.memory_bytes if (one := self._gpu(uuid)) is not None else 0,
            scores=lambda: joined.scores(self.offer.gpus, self.observation.paths),
            described=self._specs.renew,
            given=self.witness.gave,
        )

    @property
    def node(self) -> GpuNode | None:
        """The GPUNode as last seen."""
        return self.status.node

    def look(self) -> None:
        """Something may have changed, wherever."""
        self.applying.look()
        self._labels.look()
        self.status.look()

    def count(self) -> None:
        """The GPUNode or a pod has changed."""
        if self._allocatable(self.offer.gpus) != self.allocatable.value:
            self.applying.look()

    async def known(self) -> None:
        """Return once the cluster has said what there is, and what it wants."""
        await self.status.informer.synced.wait()
        await self.configuration.synced()

    def answers(self, resource: str) -> plugin_service.ContainerAllocator:
        """Who answers for a resource."""
        return self._share_answers if resource in advertisement.COUNTERS else self._device_answers

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs for as long as the agent does."""
        return {
            "gpus": self.observation.run(),
            "modes": self.applying.run(),
            "status": self._report(),
            "labels": self._labels.run(),
            "events": self._recorder.run(),
            "announcements": self.announcer.run(),
            "holders": self.holders.run(),
            "cdi": self._describe(),
            "arrivals": self.arrivals.run(),
        }

    async def leave(self) -> None:
        """Let go of what outlives this process."""
        await self._daemons.leave()

    def _injected(self) -> tuple[Condition, ...]:
        """Of an agent beside the cluster, which has no container, nothing is known; that is nobody's trouble."""
        missing = self.arrivals.missing
        shown = (self.injecting.injection.shown(missing),) if self._settings.pod_uid or missing else ()
        return (*shown, *self._denied.conditions)

    def _counters_given(self, resource: str, ids: Collection[str]) -> None:
        """A container was given these. Of some of them the kubelet may be about to hear that they are not healthy."""
        self.witness.gave(resource, ids)
        if not {one.id for one in self.advertised.value.get(resource, ()) if one.healthy}.issuperset(ids):
            self.applying.look()

    def _gpu(self, uuid: str) -> Gpu | None:
        return next((card for card in self._seen.gpus if card.uuid == uuid), None)

    def _ill(self) -> frozenset[str]:
        """What is not healthy though its GPU is: MIG devices, and GPUs whose MPS daemon does not run."""
        without = {
            one.device
            for devices in self.applying.offered.values()
            for one in devices
            if one.mode.value == "mps" and self._daemons.problem(one.gpu)
        }
        return self.observation.ill | without

    def _nodes(self) -> answer.Nodes:
        parts = [
            (one.uuid, uuid, one.gpu_instance, one.compute_instance)
            for uuid, found in self.observation.found.items()
            for one in found.devices
        ]
        roots = (Path("/"), Path(self.applying.settings.container_driver_root))
        return device_nodes.nodes(self.observation.minors, roots=roots, parts=parts)

    async def _wanted_labels(self) -> words.Labels | None:
        in_force = self.applying.settings
        try:
            facts = await self.driver.ask(
                label_facts.facts,
                self.driver.nvml,
                self._seen.gpus,
                self.observation.found,
                machine_type_file=in_force.machine_type_file,
            )
            return whole.labels(
                facts,
                strategy=in_force.mig_strategy,
                sharing=label_facts.sharing(self.applying.in_force),
                started=self._started if in_force.timestamp_label else None,
            )
        except (nvml_call.NvmlError, gpu_resources.StrategyError, words.DriverVersionError):
            return None

    async def _report(self) -> None:
        # What the GPUs are used for is a part of their status, and must not be missing from the first one; nor should
        # it take two writes for each of a thousand agents that start.
        await self.applying.said.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AUDITED_SECONDS):
                await self.audited.wait()
        await self.status.run(self.observation.informed)

    async def _describe(self) -> None:
        """Keep the files for container runtimes true also where nobody asks: containers are started anew from them."""
        await self.applying.said.wait()
        async for _ in self.advertised.follow():
            try:
                self._specs.renew(self.injecting.settings)
            except specs.SpecError as error:
                logger.warning("Could not describe the GPUs for container runtimes", extra={"err": str(error)})

    def _gpu_of(self) -> dict[str, str]:
        return {
            uuid: card.uuid
            for card in self.observation.card_list
            for uuid in (card.uuid, *(one.uuid for one in card.mig_devices))
        }


async def _nothing_given(namespace: str, name: str, container: str) -> Refusal:
    return Refusal(f"nobody knows yet what the container {container} of the pod {namespace}/{name} was given")
