"""One agent process: what is started, in which order, and what readiness means.

The kubelet is served and the arbiter listens before the API server has been heard of: on a node that has lost its
control plane, containers restart too. What needs the API server waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Any, Final

import prometheus_client

from deviceplugin import advertisement, library, metrics, nvml, observation, registration, service
from deviceplugin.arbiter import groups, lookup, server
from deviceplugin.gpunode_status import GpuNodeStatus
from deviceplugin.node_capacity import NodeCapacity
from deviceplugin.offer import Offer
from deviceplugin.settings import Settings
from gpushare import contract, pod
from gpushare.cluster import client, informer
from gpushare.daemon import probes, shutdown

logger = logging.getLogger(__name__)

PODS: Final = "/api/v1/pods"
KNOWN_SECONDS: Final = 2.0  # an API server that answers at all answers sooner


async def run(settings: Settings, daemon: shutdown.Daemon, *, driver: nvml.Nvml, installed: library.Installed) -> None:
    """Serve until told to stop. `driver` may still be asked when this returns: it ends with the process."""
    logger.info(
        "Compute is not enforced yet: a share's request and limit of compute are accounted for, its memory is enforced"
    )
    settings.run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    async with client.connect(settings.kubeconfig, component="agent") as api:
        agent = Agent(settings, api, driver, installed)
        agent.ledgers.inherit()
        try:
            async with agent.arbiter:
                await agent.serve(daemon)
        finally:
            # Here, and not after us: they need the client, and take their sockets away themselves.
            await daemon.end_tasks()
            agent.ledgers.close()


class Agent:
    """The parts of an agent, put together."""

    def __init__(self, settings: Settings, api: client.Client, driver: nvml.Nvml, installed: library.Installed) -> None:
        self._settings = settings
        name = settings.node_name
        self._offer = Offer()
        self._status = GpuNodeStatus(api, node_name=name, offer=self._offer)
        self._capacity = NodeCapacity(api, node_name=name, offer=self._offer)
        self._observation = observation.Observation(
            driver, offer=self._offer, node=lambda: self._status.node, known=self._status.informer.synced
        )
        self._pods = informer.Informer(api, PODS, field_selector=_on(name), label_selector=_OURS, transform=_trimmed)
        self.ledgers = groups.Groups(settings.state_directory, proc=settings.proc_root)
        self.arbiter = server.Server(
            settings.run_directory / contract.ARBITER_SOCKET_NAME,
            lookup=lookup.Lookup(
                pods=self._pods.objects.values,
                node=lambda: self._status.node,
                ask_pods=lambda: _ask_pods(api, name),
                ask_node=self._status.refreshed,
            ),
            groups=self.ledgers,
            identify=server.by_cgroup(settings.proc_root),
            proc=settings.proc_root,
        )
        mounts = service.Mounts(installed.library, installed.preload_file, settings.run_directory)
        self._registrations = {
            resource.name: registration.Registration(
                resource,
                offer=self._offer,
                mounts=mounts,
                directory=settings.kubelet_directory,
                registered=self._capacity.kubelet_returned,
            )
            for resource in advertisement.RESOURCES
        }

    async def serve(self, daemon: shutdown.Daemon) -> None:
        """Do everything but the arbiter, which listens already, until told to stop."""
        daemon.start("gpunode", self._status.informer.run())
        daemon.start("pods", self._pods.run())
        await _at_most(KNOWN_SECONDS, self._status.informer.synced)
        await self._observation.look()
        daemon.start("gpus", self._observation.run())
        daemon.start("status", self._status.run(self._observation.informed))
        daemon.start("capacity", self._capacity.run())
        for name, one in self._registrations.items():
            daemon.start(name, one.run())
        checks = {**self._checks(), "running": lambda: "shutting down" if daemon.stopping.is_set() else None}
        host, port = self._settings.probe_host, self._settings.probe_port
        async with probes.serve(checks, self._registry(), host=host, port=port) as probe_port:
            logger.info("Serving", extra={"node": self._settings.node_name, "probe_port": probe_port})
            await daemon.stopping.wait()

    def _checks(self) -> dict[str, probes.Check]:
        name = self._settings.node_name
        return {
            "kubelet": lambda: "; ".join(one.problem for one in self._registrations.values() if one.problem) or None,
            "gpunode": lambda: None if self._status.written else f"the GPUNode {name} is not written yet",
            "pods": lambda: None if self._pods.synced.is_set() else "the pods of this node are not known yet",
        }

    def _registry(self) -> prometheus_client.CollectorRegistry:
        registry = prometheus_client.CollectorRegistry()
        registry.register(
            metrics.AgentCollector(
                node_name=self._settings.node_name,
                offer=self._offer,
                node=lambda: self._status.node,
                uses=self.ledgers.uses,
                connections=lambda: self.arbiter.connections,
                turned_away=lambda: self.arbiter.turned_away,
            )
        )
        return registry


async def _at_most(seconds: float, event: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


_OURS: Final = f"{contract.SHARE_LABEL}={contract.SHARE_LABEL_VALUE}"


def _on(node_name: str) -> str:
    return f"spec.nodeName={node_name}"


async def _ask_pods(api: client.Client, node_name: str) -> Iterable[dict[str, Any]]:
    listing = await api.list(PODS, {"fieldSelector": _on(node_name)})
    return [_trimmed(item) for item in listing.items if contract.ALLOCATION in pod.annotations_of(item)]


def _trimmed(item: dict[str, Any]) -> dict[str, Any]:
    """What the arbiter needs of a pod: an agent on every node should keep no more."""
    kept = ("namespace", "name", "uid", "resourceVersion")
    found = item["metadata"]
    annotations = pod.annotations_of(item)
    status = item.get("status") or {}
    return {
        "metadata": {
            **{key: found[key] for key in kept if key in found},
            "annotations": {key: annotations[key] for key in (contract.ALLOCATION,) if key in annotations},
        },
        "status": {key: value for key, value in status.items() if key.endswith("ontainerStatuses")},
    }
