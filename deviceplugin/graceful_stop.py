"""Stops the agent gracefully: no new pods are placed on its node, and pods already on their way are still admitted.

The kubelet rejects a pod permanently if no plugin answers for its resources, and the scheduler learns of the missing
plugin only with the next node status. So a stopping agent first says so in the GPUNode, after which no share can be
written to it, and ends once the kubelet has allocated devices to all pods with shares.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from deviceplugin.report.gpunode_status import GpuNodeStatus
from deviceplugin.state import advertisement, pod_resources
from gpushare import pod
from gpushare.cluster import api_errors
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

# A pod is placed, bound and admitted within a second, but waiting for volumes can take any time. `shutdown` cuts
# the process short 25 s after SIGTERM, and Kubernetes kills it after 30 s. The remaining time is for its own end.
MAX_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 0.5


async def prepare(
    status: GpuNodeStatus,
    *,
    node: Callable[[], GpuNode | None],
    pods: Callable[[], Iterable[PodJson]],
    pod_resources_socket: Path,
) -> None:
    """Return when the agent can stop: no pod is on its way, the wait is too long, or the GPUNode cannot be written."""
    expected: list[str] = []
    try:
        async with asyncio.timeout(MAX_SECONDS):
            await _report_stop(status)
            while expected := on_their_way(node(), pods(), await _held(pod_resources_socket)):  # noqa: ASYNC110 (no event)
                await asyncio.sleep(POLL_SECONDS)
    except (TimeoutError, api_errors.ClusterError) as error:
        why = str(error) or f"not done within {MAX_SECONDS:g} s"
        logger.warning("Pods may start while no agent runs", extra={"err": why, "pods": expected})


async def _report_stop(status: GpuNodeStatus) -> None:
    while True:
        try:
            await status.stop()
        # a pod was just placed, which changed the GPUNode; the copy has the new version by now
        except api_errors.Conflict:
            continue
        # An API server that has just started rejects all requests until it has loaded RBAC.
        except (api_errors.Unavailable, api_errors.Forbidden) as error:
            logger.debug("Could not report the stop in the GPUNode yet", extra={"err": str(error)})
            await asyncio.sleep(RETRY_SECONDS)
            continue
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
    """Return the pods, as `namespace/name`, with a share on this node but without devices from the kubelet. Pure.

    pods: the node's pods, from the API server; held: the devices of containers, from the kubelet.
    """
    served = {f"{devices.namespace}/{devices.pod}" for devices in held if devices.resource in advertisement.COUNTERS}
    ended = {pod.uid(manifest) for manifest in pods if pod.is_terminal(manifest)}
    placed = {str(entry.pod) for entry in (node.allocations if node else ()) if entry.pod.uid not in ended}
    return sorted(placed - served)
