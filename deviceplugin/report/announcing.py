"""Tells of GPUs that stop or begin to be usable: on the GPUNode, and on every pod that uses them.

A pod does not fail when its GPU does; it computes no more, or wrongly, and nobody knows why. The kubelet does not say.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from deviceplugin.modes.gpu_users import GpuUsers
from deviceplugin.state import advertisement, gpu_usage, pod_resources
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.offer import Observable, Offer, Unreadable
from gpushare import contract, pod
from gpushare.cluster import events
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEvents:
    """Writes Events about this node's GPUNode, and about the `pods` of the node."""

    recorder: events.Recorder
    gpunode: GpuNodeCopy
    _: dataclasses.KW_ONLY
    pods: Callable[[], Iterable[PodJson]]

    def tell(self, reason: str, note: str, *, warning: bool = False) -> None:
        """An Event about the GPUNode."""
        self._record(self.gpunode.reference, reason, note, warning=warning)

    def tell_of(self, namespace: str, name: str, reason: str, note: str, *, warning: bool = False) -> None:
        """An Event about a pod."""
        reference = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name}
        uids = (pod.uid(manifest) for manifest in self.pods() if pod.namespaced_name(manifest) == (namespace, name))
        uid = next(uids, "")
        self._record(reference | ({"uid": uid} if uid else {}), reason, note, warning=warning)

    def warn(self, reason: str, note: str, of: tuple[str, str] | None) -> None:
        """An Event of something amiss, about the GPUNode and, by namespace and name, a pod."""
        self.tell(reason, note, warning=True)
        if of is not None:
            self.tell_of(*of, reason, note, warning=True)

    def _record(self, regarding: Mapping[str, str], reason: str, note: str, *, warning: bool) -> None:
        self.recorder.record(regarding, reason, note, type="Warning" if warning else "Normal", action="Configure")


@dataclasses.dataclass(frozen=True, slots=True)
class Announcer:
    """Follows the GPUs with their modes.

    unread: further GPUs, of which nothing could be read; node: the GPUNode as last seen; gpu_of: by the UUID of a GPU
    or MIG device, that of the GPU that it is on.
    """

    node_events: NodeEvents
    witness: GpuUsers
    _: dataclasses.KW_ONLY
    gpus: Offer
    unread: Observable[tuple[Unreadable, ...]]
    node: Callable[[], GpuNode | None]
    gpu_of: Callable[[], Mapping[str, str]]

    async def run(self) -> None:
        """Tell of GPUs that stop or begin to be usable, until cancelled."""
        changed = asyncio.Event()
        self.gpus.wake(changed)
        self.unread.wake(changed)
        before, unread_before = self.gpus.gpus[:0], self.unread.value[:0]
        while True:
            await changed.wait()
            changed.clear()
            gpus, unread = self.gpus.gpus, self.unread.value
            news = (*notes(before, gpus), *notes_of_unread(unread_before, unread))
            before, unread_before = gpus, unread
            if news:
                await self.witness.ask_kubelet()
                announce(news, self.node_events, pods=self._concerned)

    def _concerned(self, gpu: str) -> tuple[tuple[str, str], ...]:
        return concerned(gpu, self.node(), self.witness.held, self.gpu_of())


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """An Event to record about a GPU."""

    gpu: str
    reason: str
    sentence: str
    warning: bool


def notes(before: Iterable[Gpu], after: Iterable[Gpu]) -> tuple[Note, ...]:
    """What is to be told once the GPUs are as `after`; a GPU that is new and healthy is nothing to tell. Pure."""
    known = {gpu.uuid: gpu for gpu in before}
    notes = []
    for gpu in after:
        was = known.get(gpu.uuid)
        called = f"GPU {gpu.index} ({gpu.uuid})"
        if not gpu.healthy and (was is None or was.healthy):
            sentence = f"{called} is not healthy: {gpu.health_reason}"
            notes.append(Note(gpu.uuid, contract.EVENT_GPU_UNHEALTHY, sentence, warning=True))
        if gpu.healthy and was is not None and not was.healthy:
            notes.append(Note(gpu.uuid, contract.EVENT_GPU_HEALTHY, f"{called} is healthy again", warning=False))
    return tuple(notes)


def notes_of_unread(before: Iterable[Unreadable], after: Iterable[Unreadable]) -> tuple[Note, ...]:
    """What is to be told of GPUs that cannot be read, and so have no UUID. One that is found is a new GPU. Pure."""
    known = {(gpu.index, gpu.bus_id) for gpu in before}
    return tuple(
        Note("", contract.EVENT_GPU_UNHEALTHY, str(gpu), warning=True)
        for gpu in after
        if (gpu.index, gpu.bus_id) not in known
    )


def concerned(
    gpu: str, node: GpuNode | None, held: Iterable[pod_resources.ContainerDevices], gpu_of: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The pods that use a GPU, as (namespace, name), by the ledger and by the kubelet. Pure."""
    of_ledger = [
        (entry.pod.namespace, entry.pod.name)
        for entry in (node.allocations if node is not None else ())
        if gpu in entry.gpu_uuids and entry.pod.name and not entry.is_backfill_reservation
    ]
    of_kubelet = [
        (container.namespace, container.pod)
        for container in held
        if container.resource not in advertisement.COUNTERS
        and any(gpu_of.get(gpu_usage.without_replica(identity)) == gpu for identity in container.device_ids)
    ]
    return tuple(dict.fromkeys((*of_ledger, *of_kubelet)))


def announce(news: Iterable[Note], teller: NodeEvents, *, pods: Callable[[str], Iterable[tuple[str, str]]]) -> None:
    """Write the Events. pods: who uses a GPU, by namespace and name."""
    for note in news:
        teller.tell(note.reason, note.sentence, warning=note.warning)
        for namespace, name in pods(note.gpu):
            teller.tell_of(namespace, name, note.reason, note.sentence, warning=note.warning)
