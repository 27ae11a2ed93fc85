"""The last that an agent does: nobody places on its node any more, and who is on the way there still gets in.

The kubelet refuses a pod for good when nobody answers for what the pod asks for, and tells the scheduler of that only
with its next status. So an agent that is told to stop says so in the GPUNode first, after which no share is written on
it, and goes when the kubelet has given all pods with shares their devices.
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

# Placed, bound and admitted takes a second; a pod that waits for its volumes may take any time. We are cut short 25 s
# after we were told to stop (`shutdown`), and killed by Kubernetes after 30: what is left is for our own end.
MAX_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.2
AGAIN_SECONDS: Final = 0.5


async def prepare(
    status: GpuNodeStatus,
    *,
    node: Callable[[], GpuNode | None],
    pods: Callable[[], Iterable[PodJson]],
    pod_resources_socket: Path,
) -> None:
    """Return when the agent may stop: all pods on their way are there, or take too long, or nobody can be told."""
    coming: list[str] = []
    try:
        async with asyncio.timeout(MAX_SECONDS):
            await _tell(status)
            while coming := on_their_way(node(), pods(), await _held(pod_resources_socket)):  # noqa: ASYNC110 (nothing tells us)
                await asyncio.sleep(LOOK_SECONDS)
    except (TimeoutError, api_errors.ClusterError) as error:
        why = str(error) or f"not done within {MAX_SECONDS:g} s"
        logger.warning("Pods may come while no agent is there", extra={"err": why, "pods": coming})


async def _tell(status: GpuNodeStatus) -> None:
    while True:
        try:
            await status.stop()
        except api_errors.Conflict:  # somebody has placed a pod at this moment, which we see now
            continue
        # An API server that has just started refuses everybody, until it has read who may do what.
        except (api_errors.Unavailable, api_errors.Forbidden) as error:
            logger.debug("The GPUNode does not say yet that the agent stops", extra={"err": str(error)})
            await asyncio.sleep(AGAIN_SECONDS)
            continue
        return


async def _held(socket: Path) -> Iterable[pod_resources.ContainerDevices]:
    """A kubelet that is silent is on its way back, and judges all its pods again when it is."""
    try:
        return await pod_resources.held(socket)
    except pod_resources.PodResourcesError:
        return ()


def on_their_way(
    node: GpuNode | None, pods: Iterable[PodJson], held: Iterable[pod_resources.ContainerDevices]
) -> list[str]:
    """The pods, as `namespace/name`, with a share on this node to which the kubelet has given nothing yet. Pure.

    pods: of this node, as the API server has them; held: what containers have, as the kubelet says.
    """
    served = {f"{devices.namespace}/{devices.pod}" for devices in held if devices.resource in advertisement.COUNTERS}
    ended = {pod.uid(manifest) for manifest in pods if pod.is_terminal(manifest)}
    placed = {str(entry.pod) for entry in (node.allocations if node else ()) if entry.pod.uid not in ended}
    return sorted(placed - served)
