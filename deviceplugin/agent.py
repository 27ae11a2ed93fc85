"""One agent process: what is started, in which order, and what readiness means.

The kubelet is served and the arbiter listens before the API server has been heard of: on a node that has lost its
control plane, containers restart too. What needs the API server waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final

import prometheus_client

from deviceplugin import graceful_stop
from deviceplugin.agent_parts import AgentParts
from deviceplugin.agent_settings import AgentSettings
from deviceplugin.audit import auditor
from deviceplugin.denial import pod_denial
from deviceplugin.disk import library
from deviceplugin.hardware import nvml
from deviceplugin.link import arbiter_process
from deviceplugin.node_pods import NodePods
from deviceplugin.state.wake import Wake
from gpushare import contract
from gpushare.cluster import api_client, informer
from gpushare.daemon import probes, shutdown

logger = logging.getLogger(__name__)

LEDGERS: Final = "ledgers"  # below the state directory
KNOWN_SECONDS: Final = 2.0  # an API server that answers at all answers sooner
# How long what is known of the cluster may be old before readiness says so: an API server is restarted in less.
STALE_SECONDS: Final = 60.0
AUDITED_SECONDS: Final = 5.0  # the first status waits for so long for the first whole audit


async def run(
    settings: AgentSettings, daemon: shutdown.Daemon, *, driver: nvml.Nvml, installed: library.Installed
) -> None:
    """Serve until told to stop. `driver` may still be asked when this returns: it ends with the process."""
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
        running = await stack.enter_async_context(
            arbiter_process.running(
                settings.run_directory / contract.ARBITER_SOCKET_NAME,
                ledgers=settings.state_directory / LEDGERS,
                proc=settings.proc_root,
                log_level=settings.log_level,
                registered=denied.map_descriptor,
            )
        )
        parts = AgentParts(settings, api, driver, installed, running, pods=pods, wake=wake, denied=denied)
        try:
            await _serve(parts, settings, daemon, library_name=installed.library.name)
        finally:
            # Here, and not after us: they need the client, and take their sockets away themselves.
            await daemon.end_tasks()
            await parts.daemons.leave()
            parts.arbiter.close()


async def _serve(parts: AgentParts, settings: AgentSettings, daemon: shutdown.Daemon, *, library_name: str) -> None:
    """Start everything but the arbiter's process, in this order, and go on until told to stop."""
    daemon.start("arbiter", parts.running.watched())
    daemon.start("gpunode", parts.gpunode.informer.run())
    daemon.start("pods", parts.pods.informer.run())
    daemon.start("configuration", parts.configuration.run())
    await _first(parts.arbiter.listening.wait(), daemon.stopping.wait())
    if daemon.stopping.is_set():
        return
    daemon.start("reports", parts.arbiter.run())
    if parts.denied.is_on:  # by now the kernel knows who was registered with the last arbiter
        daemon.start("denial", _deny(parts))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KNOWN_SECONDS):
            await parts.gpunode.informer.synced.wait()
            await parts.pods.informer.synced.wait()
            await parts.configuration.synced()
    daemon.start("silence", parts.observation.watch(parts.reconciler.say_again))
    await parts.observation.look()
    works: dict[str, Coroutine[Any, Any, None]] = {
        "gpus": parts.observation.run(),
        "modes": parts.reconciler.run(),
        "status": _report(parts),
        "labels": parts.labels.run(),
        "events": parts.recorder.run(),
        "announcements": parts.announcer.run(),
        "holders": parts.holders.run(),
        "cdi": _describe(parts),
        "arrivals": parts.arrivals.run(),
        "capacity": parts.capacity.run(),
        "plugins": parts.plugins.run(),
        "audit": _audit(parts),
        "peaks": parts.peaks.run(),
        "old libraries": parts.old_libraries.run(),
    }
    for name, work in works.items():
        daemon.start(name, work)
    checks = {**_checks(parts, settings), "running": lambda: "shutting down" if daemon.stopping.is_set() else None}
    host, port = settings.probe_host, settings.probe_port
    registry = prometheus_client.CollectorRegistry()
    registry.register(parts.metrics)
    documents = {contract.AUDIT_PATH: parts.auditor.document}
    async with probes.serve(checks, registry, host=host, port=port, documents=documents) as probe_port:
        served = {"node": settings.node_name, "probe_port": probe_port, "library": library_name}
        logger.info("Serving", extra=served)
        await daemon.stopping.wait()
        if not daemon.failed:
            await graceful_stop.prepare(
                parts.status,
                node=parts.gpunode.now,
                pods=parts.pods.all,
                pod_resources_socket=settings.pod_resources_socket,
            )


async def _deny(parts: AgentParts) -> None:
    # Before the pods are known none would be left out, and it would be said that all are denied.
    await parts.pods.informer.synced.wait()
    await parts.denied.run()


async def _audit(parts: AgentParts) -> None:
    # The audit compares processes with what each GPU is used for, so that must be known first.
    await parts.reconciler.said.wait()
    # Whoever asks this node is told meanwhile what is missing. The GPUNode is not: an API server that is slow for a
    # moment would make the condition of every node unknown, and what the last agent has found would be lost. It is told
    # when the pods stay unknown, for then nobody stands behind what the last agent has said.
    last = time.monotonic() + STALE_SECONDS
    while not parts.is_known and time.monotonic() < last:
        await parts.auditor.step()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(auditor.SECONDS):
                await parts.gpunode.informer.synced.wait()
                await parts.pods.informer.synced.wait()
    await parts.auditor.step()
    parts.tell_audit()
    await parts.auditor.run()


async def _report(parts: AgentParts) -> None:
    # What the GPUs are used for is a part of their status, and must not be missing from the first one; nor should it
    # take two writes for each of a thousand agents that start.
    await parts.reconciler.said.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(AUDITED_SECONDS):
            await parts.audited.wait()
    await parts.status.run(parts.observation.informed)


async def _describe(parts: AgentParts) -> None:
    await parts.reconciler.said.wait()
    await parts.specs.run(parts.state.advertised, parts.injecting.settings)


def _checks(parts: AgentParts, settings: AgentSettings) -> dict[str, probes.Check]:
    name = settings.node_name
    informers = (parts.gpunode.informer, parts.pods.informer, *parts.configuration.informers)
    return {
        "arbiter": lambda: parts.arbiter.problem,
        "gpus": parts.unreadable,
        "kubelet": lambda: parts.plugins.problem or None,
        "gpunode": lambda: None if parts.status.written else f"the GPUNode {name} is not written yet",
        "pods": lambda: None if parts.pods.informer.synced.is_set() else "the pods of this node are not known yet",
        "configuration": lambda: None if parts.configuration.is_known else "the node's configuration is not known yet",
        "api": lambda: informer.silence(informers, longest_seconds=STALE_SECONDS),
    }


async def _first(*waiting: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(coroutine) for coroutine in waiting]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
