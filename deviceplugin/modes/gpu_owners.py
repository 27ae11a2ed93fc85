"""The owner of each GPU on a node whose GPUs another device plugin gives: a placeholder, or another pod or none.

A placeholder's GPU is known from the kubelet alone, so it needs no driver, token or RuntimeClass. A pod keeps its GPU
for its whole life, so a last known placeholder stays right while the kubelet does not answer. After a start, and until
the kubelet has answered, the GPUNode's own status says who had each GPU. A placeholder that the ledger has marked ends
once no process is left on its GPU: those of a share can outlive it, as after a forced deletion of its pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.host import kernel_process
from deviceplugin.state.node_state import Observable
from deviceplugin.state.pod_resources import ContainerDevices, PodResourcesError
from gpushare import borrowing, contract, pod
from gpushare.cluster import retrying
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

SECONDS: Final = 5.0  # between two questions, if no pod of the node changes

Owners = Mapping[str, str]  # by UUID: the UID of a placeholder, or OTHER_OWNER


def owners(held: Iterable[ContainerDevices], pods: Iterable[PodJson], uuids: Collection[str]) -> Owners:
    """Return the owner of each GPU; an ID that is no GPU, such as a replica `UUID::0`, owns none."""
    living = {pod.namespaced_name(each): pod.uid(each) for each in pods if not pod.is_terminal(each)}
    found = dict.fromkeys(uuids, contract.OTHER_OWNER)
    for container in held:
        uid = living.get((container.namespace, container.pod))
        if (
            container.namespace == contract.BORROW_NAMESPACE
            and container.resource == contract.BORROWED_RESOURCE
            and uid
        ):
            found |= {uuid: uid for uuid in container.device_ids if uuid in found}
    return found


def end(uids: Collection[str], identify: Identify, proc: Path = kernel_process.PROC) -> int:
    """Kill the processes of these pods; return how many. Raises PermissionError without the capability KILL.

    A kubelet does not shorten a grace period that has begun, so it would end such a pod only after weeks.
    """
    count = 0
    for pid in (int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:  # of the pod that the process of this descriptor is in, even if the pid was reused before
                found = identify(pid)
                if isinstance(found, kernel_process.Container) and found.pod_uid in uids:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    count += 1
            finally:
                os.close(descriptor)
    return count


class GpuOwners:
    """Keeps `state`, the owners, None until they are known. wake: set when a pod of the node may have changed.

    is_borrowing: whether the node's GPUs are another plugin's. held, pods: the containers with devices, and the node's
    pods, None while they are unknown. uuids: the GPUs. node: the GPUNode, None while unknown. identify: finds the
    container of a process. processes: those on each GPU, in words.
    """

    def __init__(
        self,
        state: Observable[Owners | None],
        *,
        is_borrowing: Callable[[], bool],
        held: Callable[[], Awaitable[Sequence[ContainerDevices]]],
        pods: Callable[[], Sequence[PodJson] | None],
        uuids: Callable[[], Collection[str]],
        node: Callable[[], GpuNode | None],
        identify: Identify,
        processes: Callable[[Collection[str]], Awaitable[Mapping[str, Collection[str]]]],
        wake: asyncio.Event,
    ) -> None:
        self._state, self._is_borrowing, self._held = state, is_borrowing, held
        self._pods, self._uuids, self._node, self._wake = pods, uuids, node, wake
        self._identify, self._processes = identify, processes

    async def run(self) -> None:
        while True:
            self._wake.clear()
            await self.step()
            await retrying.wait(self._wake, SECONDS)

    async def step(self) -> None:
        known = self._pods()
        if not self._is_borrowing() or known is None:
            return
        try:
            held = await self._held()
        except PodResourcesError as error:
            logger.warning("It is unknown which pods have the GPUs", extra={"err": str(error)})
            return
        found = owners(held, known, self._uuids())
        self._state.publish(found)
        await self._end_marked(known, found)

    async def _end_marked(self, known: Sequence[PodJson], found: Owners) -> None:
        """End the placeholders that the ledger has marked: their GPU has no share, gets none, and has no process."""
        node = self._node()
        marks = frozenset(node.borrowed.values()) if node is not None else frozenset[str]()
        living = {uid for each in known if not pod.is_terminal(each) and borrowing.mark(uid := pod.uid(each)) in marks}
        uids = {uid for uid in living if node is not None and borrowing.may_end(node, uid)}
        uuids = [uuid for uuid, uid in found.items() if uid in uids]
        for uuid, processes in (await self._processes(uuids) if uuids else {}).items():
            if processes:
                logger.warning("A GPU is not given back yet", extra={"gpu": uuid, "processes": sorted(processes)})
                uids.discard(found[uuid])
        if not uids:
            return
        try:
            if count := await asyncio.to_thread(end, uids, self._identify):
                logger.info("Ended placeholders", extra={"uids": sorted(uids), "processes": count})
        except PermissionError:
            problem = "the agent lacks the capability KILL (config/components/borrow)"
            logger.warning("Could not end placeholders", extra={"uids": sorted(uids), "err": problem})

    def of(self, uuid: str) -> str:
        if self._state.value is not None:
            return self._state.value.get(uuid, contract.OTHER_OWNER)
        node = self._node()
        before = {gpu.uuid: gpu.owner for gpu in node.gpus} if node is not None else {}
        return before.get(uuid) or contract.OTHER_OWNER

    def foreign(self, uuids: Iterable[str]) -> str:
        """Return why a share on these GPUs must not start now, as a sentence; empty if it may."""
        if not self._is_borrowing():
            return ""
        others = [uuid for uuid in uuids if self.of(uuid) == contract.OTHER_OWNER]
        if not others:
            return ""
        return f"{', '.join(others)} belongs to another device plugin, not to a placeholder: wait, or delete the pod"
