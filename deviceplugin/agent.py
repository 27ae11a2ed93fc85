"""One agent process: what is started, in which order, and what readiness means.

The kubelet is served and the arbiter listens before the API server has been heard of: on a node that has lost its
control plane, containers restart too. What needs the API server waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final

import prometheus_client

from deviceplugin import agent_metrics, library, node_parts, node_pods, old_libraries, refused_libraries, share_peaks
from deviceplugin.agent_settings import AgentSettings
from deviceplugin.arbiter import socket_server
from deviceplugin.audit import auditor, contexts
from deviceplugin.denial import covering
from deviceplugin.hardware import nvml
from deviceplugin.kubelet import plugins
from deviceplugin.link import arbiter, arbiter_process, lookup
from deviceplugin.node_capacity import NodeCapacity
from gpushare import contract, pod
from gpushare.cluster import api_client, informer
from gpushare.daemon import probes, shutdown
from gpushare.gpunode import GpuNode

logger = logging.getLogger(__name__)

LEDGERS: Final = "ledgers"  # below the state directory
KNOWN_SECONDS: Final = 2.0  # an API server that answers at all answers sooner
# How long what is known of the cluster may be old before readiness says so: an API server is restarted in less.
STALE_SECONDS: Final = 60.0


async def run(
    settings: AgentSettings, daemon: shutdown.Daemon, *, driver: nvml.Nvml, installed: library.Installed
) -> None:
    """Serve until told to stop. `driver` may still be asked when this returns: it ends with the process."""
    settings.run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(api_client.connect(settings.kubeconfig, component="agent"))
        denied = stack.enter_context(
            covering.opened(
                settings.bpf_root, settings.cgroup_root, proc=settings.proc_root, wanted=settings.deny_unregistered
            )
        )
        running = await stack.enter_async_context(
            arbiter_process.running(
                settings.run_directory / contract.ARBITER_SOCKET_NAME,
                ledgers=settings.state_directory / LEDGERS,
                proc=settings.proc_root,
                log_level=settings.log_level,
                registered=denied.map_descriptor,
            )
        )
        agent = Agent(settings, api, driver, installed, running, denied)
        try:
            await agent.serve(daemon)
        finally:
            # Here, and not after us: they need the client, and take their sockets away themselves.
            await daemon.end_tasks()
            await agent.view.leave()
            agent.arbiter.close()


class Agent:
    """The parts of an agent, put together."""

    def __init__(
        self,
        settings: AgentSettings,
        api: api_client.ApiClient,
        driver: nvml.Nvml,
        installed: library.Installed,
        running: arbiter_process.ArbiterProcess,
        denied: covering.Covering,
    ) -> None:
        self._settings = settings
        self._denied = denied
        self._running = running
        name = settings.node_name
        self._pods = node_pods.watched(api, name)
        self.view = node_parts.NodeParts(
            settings, api, driver, installed, pods=self._pods.objects.values, denied=denied
        )
        self._pods.subscribe(lambda _: self.view.look())
        for one in (self._pods, self.view.status.informer):
            one.subscribe(lambda _: self.view.count())
        self._capacity = NodeCapacity(
            api,
            node_name=name,
            allocatable=self.view.allocatable,
            written=lambda: self.view.configuration.memory_capacity,
        )
        self.view.configuration.node.subscribe(lambda _: self._capacity.look())
        shares = lookup.Lookup(
            pods=lambda: list(map(dict, self._pods.objects.values())),
            node=lambda: self.view.node,
            ask_pods=lambda: node_pods.ask(api, name),
            ask_node=self.view.status.refreshed,
        )
        self.view.given = shares.given
        self.arbiter = arbiter.Arbiter(
            running.channel,
            lookup=shares,
            node=lambda: self.view.node,
            tell=self.view.status.look,
            context_bytes=lambda uuid: self.auditor.context_bytes(uuid),
        )
        self.arbiter.unspoken = refused_libraries.RefusedLibraries(
            self._pods.objects.values, self.view.announcer.warn
        ).refused
        self.arbiter.unclaimed_bytes = lambda *asked: self.auditor.unclaimed_bytes(*asked)
        self.view.status.resizes = self.arbiter.follow
        self.view.status.informer.subscribe(lambda _: self.arbiter.look())
        self._informers = (self.view.status.informer, self._pods, *self.view.configuration.informers)
        self.auditor = auditor.Auditor(
            self.view.driver,
            self.arbiter,
            contexts.ContextCheckpoint(settings.root, until_learned_bytes=settings.context_memory_bytes),
            auditor.Surroundings(
                gpus=lambda: self.view.offer.gpus,
                node=self._known_node,
                pods=self._pods.objects.values,
                warn=self.view.announcer.warn,
                changed=self.view.status.look,
            ),
            node_name=name,
            identify=socket_server.by_cgroup(settings.proc_root),
            driver_version=driver.version(),
            ends=settings.end_unlimited,
            proc=settings.proc_root,
        )
        self.view.status.audited = lambda: self.auditor.conditions
        self._peaks = share_peaks.Peaks(
            settings.state_directory,
            uses=self.arbiter.shares.uses,
            leases=self.arbiter.shares.held,
            pods=lambda: frozenset(map(pod.uid, self._pods.objects.values())) if self._pods.synced.is_set() else None,
        )
        self._library = installed.library
        self._old_libraries = old_libraries.OldLibraries(
            installed.library,
            settings.root,
            pods=lambda: list(self._pods.objects.values()) if self._pods.synced.is_set() else None,
            proc=settings.proc_root,
        )
        self._plugins = plugins.Plugins(
            self.view.advertised,
            answers=self.view.answers,
            directory=settings.kubelet_directory,
        )

    async def serve(self, daemon: shutdown.Daemon) -> None:
        """Do everything but what the arbiter's process does, until told to stop."""
        daemon.start("arbiter", self._running.watched())
        daemon.start("gpunode", self.view.status.informer.run())
        daemon.start("pods", self._pods.run())
        daemon.start("configuration", self.view.configuration.run())
        await _first(self.arbiter.listening.wait(), daemon.stopping.wait())
        if daemon.stopping.is_set():
            return
        daemon.start("reports", self.arbiter.run())
        if self._denied.is_on:  # by now the kernel knows who was registered with the last arbiter
            daemon.start("denial", self._denied.run())
        await _at_most(KNOWN_SECONDS, self.view.known())
        await self.view.observation.look()
        for name, work in self.view.tasks().items():
            daemon.start(name, work)
        daemon.start("capacity", self._capacity.run())
        daemon.start("plugins", self._plugins.run())
        daemon.start("audit", self._audit())
        daemon.start("peaks", self._peaks.run())
        daemon.start("old libraries", self._old_libraries.run())
        checks = {**self._checks(), "running": lambda: "shutting down" if daemon.stopping.is_set() else None}
        host, port = self._settings.probe_host, self._settings.probe_port
        documents = {contract.AUDIT_PATH: self.auditor.document}
        async with probes.serve(checks, self._registry(), host=host, port=port, documents=documents) as probe_port:
            served = {"node": self._settings.node_name, "probe_port": probe_port, "library": self._library.name}
            logger.info("Serving", extra=served)
            await daemon.stopping.wait()

    def _known_node(self) -> GpuNode | None:
        """The GPUNode, an empty one where there is none yet; None while it or the pods are not known."""
        if not (self.view.status.informer.synced.is_set() and self._pods.synced.is_set()):
            return None
        return self.view.node or GpuNode(self._settings.node_name)

    async def _audit(self) -> None:
        # What a GPU is used for must be known before anybody can be said to be on the wrong one.
        await self.view.applying.said.wait()
        await self.auditor.step()
        self.view.audited.set()
        await self.auditor.run()

    def _checks(self) -> dict[str, probes.Check]:
        name = self._settings.node_name
        return {
            "arbiter": lambda: self.arbiter.problem,
            "kubelet": lambda: self._plugins.problem or None,
            "gpunode": lambda: None if self.view.status.written else f"the GPUNode {name} is not written yet",
            "pods": lambda: None if self._pods.synced.is_set() else "the pods of this node are not known yet",
            "configuration": lambda: (
                None if self.view.configuration.is_known else "the node's configuration is not known yet"
            ),
            "api": lambda: informer.silence(self._informers, longest_seconds=STALE_SECONDS),
        }

    def _registry(self) -> prometheus_client.CollectorRegistry:
        registry = prometheus_client.CollectorRegistry()
        registry.register(
            agent_metrics.AgentCollector(
                node_name=self._settings.node_name,
                offer=self.view.offer,
                node=lambda: self.view.node,
                uses=self.arbiter.shares.uses,
                connections=lambda: self.arbiter.reported.connections,
                turned_away=lambda: self.arbiter.reported.turned_away,
                versions=lambda: self.arbiter.versions,
                holders=lambda: self.view.holders.all,
                leases=self.arbiter.shares.held,
                audit=lambda: self.auditor.audit,
                peaked=lambda: self._peaks.all,
            )
        )
        return registry


async def _first(*waiting: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(one) for one in waiting]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for one in tasks:
        one.cancel()


async def _at_most(seconds: float, waiting: Any) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waiting
