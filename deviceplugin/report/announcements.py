"""Announces, as Events, GPUs whose health changes and pods with an outdated library.

A pod does not fail when its GPU does: it stalls or computes wrong results, and the kubelet does not report it. So each
pod that uses the GPU gets the same Event as the GPUNode.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from deviceplugin.host.kernel_process import Container
from deviceplugin.state import advertisement, pod_resources
from deviceplugin.state.gpunode_copy import NodeEvents
from deviceplugin.state.node_state import Observable, ObservableGpus, Unreadable
from gpushare import contract, pod
from gpushare.gpunode import Gpu, GpuNode
from gpushare.modes import device_resources
from gpushare.pod import PodJson


@dataclasses.dataclass(frozen=True, slots=True)
class HealthAnnouncer:
    """Follows the GPUs and records Events. gpu_of: returns the GPU's UUID by the UUID of each GPU and MIG device."""

    node_events: NodeEvents
    kubelet: pod_resources.KubeletDevices
    _: dataclasses.KW_ONLY
    gpus: ObservableGpus
    unread: Observable[tuple[Unreadable, ...]]
    node: Callable[[], GpuNode | None]
    gpu_of: Callable[[], Mapping[str, str]]

    async def run(self) -> None:
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
                await self.kubelet.refresh()
                announce(
                    news,
                    self.node_events,
                    pods=lambda gpu: affected(gpu, self.node(), self.kubelet.held, self.gpu_of()),
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """An Event to record about a GPU."""

    gpu: str
    reason: str
    sentence: str
    warning: bool


def notes(before: Iterable[Gpu], after: Iterable[Gpu]) -> tuple[Note, ...]:
    """Return the Events for a change of the GPUs; a new healthy GPU needs none. Pure."""
    known = {gpu.uuid: gpu for gpu in before}
    notes = []
    for gpu in after:
        was = known.get(gpu.uuid)
        named = f"GPU {gpu.index} ({gpu.uuid})"
        if not gpu.healthy and (was is None or was.healthy):
            sentence = f"{named} is not healthy: {gpu.health_reason}"
            notes.append(Note(gpu.uuid, contract.EVENT_GPU_UNHEALTHY, sentence, warning=True))
        if gpu.healthy and was is not None and not was.healthy:
            notes.append(Note(gpu.uuid, contract.EVENT_GPU_HEALTHY, f"{named} is healthy again", warning=False))
    return tuple(notes)


def notes_of_unread(before: Iterable[Unreadable], after: Iterable[Unreadable]) -> tuple[Note, ...]:
    """Return the Events for GPUs that became unreadable. They have no UUID; one that recovers is a new GPU. Pure."""
    known = {(gpu.index, gpu.bus_id) for gpu in before}
    return tuple(
        Note("", contract.EVENT_GPU_UNHEALTHY, str(gpu), warning=True)
        for gpu in after
        if (gpu.index, gpu.bus_id) not in known
    )


def affected(
    gpu: str, node: GpuNode | None, held: Iterable[pod_resources.ContainerDevices], gpu_of: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the pods that use a GPU, as (namespace, name), from the ledger and the kubelet. Pure."""
    of_ledger = [
        (entry.pod.namespace, entry.pod.name)
        for entry in (node.allocations if node is not None else ())
        if gpu in entry.gpu_uuids and entry.pod.name and not entry.is_backfill_reservation
    ]
    of_kubelet = [
        (container.namespace, container.pod)
        for container in held
        if container.resource not in advertisement.COUNTERS
        and any(gpu_of.get(device_resources.device_of(identity)) == gpu for identity in container.device_ids)
    ]
    return tuple(dict.fromkeys((*of_ledger, *of_kubelet)))


def announce(news: Iterable[Note], events: NodeEvents, *, pods: Callable[[str], Iterable[tuple[str, str]]]) -> None:
    """Record the Events. pods: returns the users of a GPU as (namespace, name)."""
    for note in news:
        events.record(note.reason, note.sentence, warning=note.warning)
        for namespace, name in pods(note.gpu):
            events.record_for_pod(namespace, name, note.reason, note.sentence, warning=note.warning)


class RefusedLibraries:
    """Sends one Event per pod whose library speaks no protocol version that the arbiter supports, with the remedy.

    The library says so on stderr, where it is easily missed, and keeps retrying. Meanwhile the program computes in
    fixed time slots, as without an arbiter, and processes that start in the container are rejected.
    """

    def __init__(
        self, pods: Callable[[], Iterable[PodJson]], warn: Callable[[str, str, tuple[str, str] | None], None]
    ) -> None:
        self._pods, self._warn = pods, warn
        self._announced: frozenset[str] = frozenset()  # pod UIDs

    def refused(self, container: Container, sentence: str) -> None:
        """Send the Event about the container's pod, once; if the pod is not known yet, when the library retries."""
        known = {pod.uid(manifest): pod.namespaced_name(manifest) for manifest in self._pods()}
        uid = container.pod_uid
        if uid in known and uid not in self._announced:
            self._announced = (self._announced & known.keys()) | {uid}
            self._warn(contract.EVENT_LIBRARY_REFUSED, sentence, known[uid])
