"""The agent process: starts all loops in order, serves the probes, and stops gracefully.

It serves the kubelet and starts the arbiter before it has reached the API server, because containers also restart on a
node that has lost its control plane. Loops that need the API server wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final

import prometheus_client

from deviceplugin import graceful_stop
from deviceplugin.agent_settings import AgentSettings
from deviceplugin.denial import pod_denial
from deviceplugin.disk import library
from deviceplugin.hardware import nvml
from deviceplugin.link import arbiter
from deviceplugin.node_pods import NodePods
from deviceplugin.state.wake import Wake
from deviceplugin.wiring import agent_parts, node_parts
from deviceplugin.wiring.agent_parts import AgentParts
from gpushare import contract
from gpushare.cluster import api_client
from gpushare.daemon import probes, shutdown

logger = logging.getLogger(__name__)

LEDGERS: Final = "ledgers"  # below the state directory
SYNC_SECONDS: Final = 2.0  # an API server that answers at all answers within this time


async def run(
    settings: AgentSettings, daemon: shutdown.Daemon, *, driver: nvml.Nvml, installed: library.Installed
) -> None:
    """Serve until stopped. A thread may still call `driver` when this returns; it ends with the process."""
    settings.run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    wake = Wake()
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(api_client.connect(settings.kubeconfig, component="agent"))
        pods = NodePods(api, settings.node_name)
        denied = stack.enter_context(
            pod_denial.opened(
                settings.bpf_root,
                settings.cgroup_root,
                proc=settings.proc_root,
                wanted=settings.deny_unregistered,
                pods=pods.all,
                changed=wake.status.set,
            )
        )
        process = await stack.enter_async_context(
            arbiter.running(
                settings.run_directory / contract.ARBITER_SOCKET_NAME,
                ledgers=settings.state_directory / LEDGERS,
                proc=settings.proc_root,
                log_level=settings.log_level,
                registered=denied.map_descriptor,
            )
        )
        cluster = node_parts.build_cluster(settings, api, pods=pods, wake=wake)
        parts = agent_parts.build(cluster, driver, process, installed=installed, denied=denied)
        try:
            await _serve(parts, daemon, library_name=installed.library.name)
        finally:
            # Inside the stack: the tasks need the API client, and they remove their sockets themselves.
            await daemon.end_tasks()
            await parts.hardware.mps_daemons.detach()
            parts.shares.arbiter.close()


async def _serve(parts: AgentParts, daemon: shutdown.Daemon, *, library_name: str) -> None:
    """Start all loops, in this order, and wait until the daemon stops."""
    cluster, observation = parts.cluster, parts.hardware.observation
    daemon.start("arbiter", parts.process.watched())
    for name, watch in cluster.watches.items():
        daemon.start(name, watch())
    await _first(parts.shares.arbiter.listening.wait(), daemon.stopping.wait())
    if daemon.stopping.is_set():
        return
    daemon.start("reports", parts.shares.arbiter.run())
    if parts.kubelet.denied.is_on:  # by now the kernel knows the processes registered with the last arbiter
        daemon.start("denial", parts.kubelet.deny())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SYNC_SECONDS):
            await cluster.synced()
            await cluster.configuration.synced()
    daemon.start("silence", observation.watch_for_silence(parts.modes.reconciler.republish))
    await observation.refresh()
    for name, loop in parts.loops.items():
        daemon.start(name, loop())
    settings = cluster.settings
    checks = {**parts.checks(), "running": lambda: "shutting down" if daemon.stopping.is_set() else None}
    host, port = settings.probe_host, settings.probe_port
    registry = prometheus_client.CollectorRegistry()
    registry.register(parts.reports.metrics)
    documents = {contract.AUDIT_PATH: parts.shares.auditor.document}
    async with probes.serve(checks, registry, host=host, port=port, documents=documents) as probe_port:
        served = {"node": settings.node_name, "probe_port": probe_port, "library": library_name}
        logger.info("Serving", extra=served)
        await daemon.stopping.wait()
        if not daemon.failed:
            await graceful_stop.prepare(
                parts.reports.status,
                node=cluster.gpunode.now,
                pods=cluster.pods.all,
                pod_resources_socket=settings.pod_resources_socket,
            )


async def _first(*waiting: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(coroutine) for coroutine in waiting]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
