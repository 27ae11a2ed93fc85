"""The agent process: waits for the driver, starts all loops in order, serves the probes, and stops gracefully.

It serves the kubelet and starts the arbiter before it has reached the API server, because containers also restart on a
node that has lost its control plane. Loops that need the API server wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Final

import prometheus_client

from deviceplugin.agent_parts import AgentParts
from deviceplugin.agent_settings import AgentSettings
from deviceplugin.cluster_objects import NodePods
from deviceplugin.denial import pod_denial
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.host import library
from deviceplugin.injection import driver_root
from deviceplugin.link import arbiter
from deviceplugin.node_parts import ClusterParts
from deviceplugin.report.gpunode_status import GpuNodeStatus
from deviceplugin.state import advertisement, pod_resources
from deviceplugin.state.node_state import Wake
from gpushare import contract, pod
from gpushare.allocation import Allocation
from gpushare.cluster import api_client, api_errors, retrying
from gpushare.daemon import lifecycle, probes
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

LEDGERS: Final = "ledgers"  # below the state directory
DRIVER_RETRY_SECONDS: Final = 15.0
GIVE_UP_SECONDS: Final = 300.0  # as rarely as the kubelet would restart it
SYNC_SECONDS: Final = 2.0  # an API server that answers at all answers within this time
# A pod is placed, bound and admitted within a second, but waiting for volumes can take any time. `shutdown` cuts
# the process short 25 s after SIGTERM, and Kubernetes kills it after 30 s. The remaining time is for its own end.
MAX_DRAIN_SECONDS: Final = 15.0
DRAIN_POLL_SECONDS: Final = 0.2
STOP_RETRY_SECONDS: Final = 0.5


async def wait_for_driver(settings: AgentSettings, daemon: lifecycle.Daemon) -> nvml.Nvml | None:
    """Wait for the driver on a node that may not have one yet (`failOnInitError: false`); None if the agent stops.

    The agent retries, because a pod may install the driver, and its readiness check says what is missing. A container
    runtime mounts a driver only when a container starts. So a container that cannot see the host's driver directory
    ends after a while, and its successor gets a driver that was installed in the meantime.
    """
    problem = "the driver has not been tried yet"
    mounted = settings.container_driver_root
    last = time.monotonic() + GIVE_UP_SECONDS
    checks, registry = {"driver": lambda: problem}, prometheus_client.CollectorRegistry()
    async with probes.serve(checks, registry, host=settings.probe_host, port=settings.probe_port) as port:
        logger.info("Waiting for a driver", extra={"node": settings.node_name, "probe_port": port})
        while not daemon.stopping.is_set():
            try:
                driver_root.load_nvml(mounted, settings.driver_root)
                return await asyncio.to_thread(nvml.Nvml)
            except nvml_call.NvmlError as error:
                if error.code == nvml.NO_LIBRARY and not mounted.is_dir() and time.monotonic() > last:
                    daemon.fail(
                        f"{error}; this container ends, so that the next one gets a driver that was installed in the "
                        f"meantime: {mounted}, where the host's driver would appear, is not a directory"
                    )
                if str(error) != problem:
                    logger.warning("No driver found", extra={"err": str(error)})
                problem = str(error)
            await retrying.wait(daemon.stopping, DRIVER_RETRY_SECONDS)
    return None


async def run(
    settings: AgentSettings, daemon: lifecycle.Daemon, *, opened: nvml.Nvml | None, installed: library.Installed
) -> None:
    """Serve until stopped. A thread may call the driver for longer, and ends with the process. opened: None to wait."""
    driver = opened or await wait_for_driver(settings, daemon)
    if driver is None:
        return
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
        cluster = ClusterParts(settings, api, pods=pods, wake=wake)
        parts = AgentParts(cluster, driver, process, installed=installed, denied=denied)
        try:
            await _serve(parts, daemon, library_name=installed.library.name)
        finally:
            # Inside the stack: the tasks need the API client, and they remove their sockets themselves.
            await daemon.end_tasks()
            await parts.hardware.mps_daemons.detach()
            parts.shares.arbiter.close()


async def _serve(parts: AgentParts, daemon: lifecycle.Daemon, *, library_name: str) -> None:
    cluster, observation = parts.cluster, parts.hardware.observation
    daemon.start("arbiter", parts.process.watched())
    for name, watch in cluster.watches.items():
        daemon.start(name, watch())
    waiting = [asyncio.create_task(event.wait()) for event in (parts.shares.arbiter.listening, daemon.stopping)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
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
        logger.info("Serving", extra={"node": cluster.name, "probe_port": probe_port, "library": library_name})
        await daemon.stopping.wait()
        if not daemon.failed:
            await drain(
                parts.reports.status,
                node=cluster.gpunode.now,
                pods=cluster.pods.all,
                pod_resources_socket=settings.pod_resources_socket,
            )


async def drain(
    status: GpuNodeStatus,
    *,
    node: Callable[[], GpuNode | None],
    pods: Callable[[], Iterable[PodJson]],
    pod_resources_socket: Path,
) -> None:
    """Return when the agent can stop: no pod is on its way, the wait is too long, or the GPUNode cannot be written.

    The kubelet rejects a pod permanently if no plugin answers for its resources, and the scheduler learns of the
    missing plugin only with the next node status. So a stopping agent first says so in the GPUNode, after which no
    share can be written to it, and ends once the kubelet has allocated devices to all pods with shares.
    """
    expected: list[str] = []
    try:
        async with asyncio.timeout(MAX_DRAIN_SECONDS):
            await _report_stop(status)
            while expected := on_their_way(node(), pods(), await _held(pod_resources_socket)):  # noqa: ASYNC110 (no event)
                await asyncio.sleep(DRAIN_POLL_SECONDS)
    except (TimeoutError, api_errors.ClusterError) as error:
        why = str(error) or f"not done within {MAX_DRAIN_SECONDS:g} s"
        logger.warning("Pods may start while no agent runs", extra={"err": why, "pods": expected})


async def _report_stop(status: GpuNodeStatus) -> None:
    while True:
        try:
            await status.stop()
        except api_errors.Conflict:
            continue  # a pod was just placed, which changed the GPUNode; the copy has the new version by now
        except (api_errors.Unavailable, api_errors.Forbidden) as error:
            # An API server that has just started rejects all requests until it has loaded RBAC.
            logger.debug("Could not report the stop in the GPUNode yet", extra={"err": str(error)})
            await asyncio.sleep(STOP_RETRY_SECONDS)
        else:
            return


async def _held(socket: Path) -> Iterable[pod_resources.ContainerDevices]:
    """Return nothing if the kubelet is down: after its restart, it admits all its pods again."""
    try:
        return await pod_resources.held(socket)
    except pod_resources.PodResourcesError:
        return ()


def on_their_way(
    node: GpuNode | None, pods: Iterable[PodJson], held: Iterable[pod_resources.ContainerDevices]
) -> list[str]:
    """Return the pods, as `namespace/name`, with a share on this node and not yet all devices from the kubelet.

    The kubelet allocates to a pod's containers one after another, and lists no init containers. Pure.
    """
    served = {(one.namespace, one.pod, one.container) for one in held if one.resource in advertisement.COUNTERS}
    ended = {pod.uid(manifest) for manifest in pods if pod.is_terminal(manifest)}
    return sorted(
        str(entry.pod)
        for entry in (node.allocations if node else ())
        if entry.pod.uid not in ended and not entry.is_backfill_reservation and not _has_devices(entry, served)
    )


def _has_devices(entry: Allocation, served: Set[tuple[str, str, str]]) -> bool:
    lasting = [share for share in entry.shares if not share.ends_early] or entry.shares
    where = entry.pod.namespace, entry.pod.name
    return all(any((*where, container) in served for container in share.containers) for share in lasting)
