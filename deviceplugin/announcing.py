"""Tells of GPUs that stop or begin to be usable: on the GPUNode, and on every pod that uses them.

A pod does not fail when its GPU does; it computes no more, or wrongly, and nobody knows why. The kubelet does not say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from deviceplugin.kubelet import advertisement, pod_resources
from deviceplugin.live import gpu_usage
from gpushare import contract
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode


class Teller(Protocol):
    """Whoever writes Events; `cluster_view.ClusterView`."""

    def tell(self, reason: str, note: str, *, warning: bool = False) -> None:
        """Write an Event about the GPUNode."""

    def tell_of(self, regarding: Mapping[str, str], reason: str, note: str, *, warning: bool = False) -> None:
        """Write an Event about any object."""


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """What is to be told of a GPU."""

    gpu: str
    reason: str
    sentence: str
    warning: bool


def notes(before: Iterable[Gpu], after: Iterable[Gpu]) -> tuple[Note, ...]:
    """What is to be told once the GPUs are as `after`; a GPU that is new and healthy is nothing to tell. Pure."""
    known = {card.uuid: card for card in before}
    found = []
    for card in after:
        was = known.get(card.uuid)
        called = f"GPU {card.index} ({card.uuid})"
        if not card.healthy and (was is None or was.healthy):
            sentence = f"{called} is not healthy: {card.health_reason}"
            found.append(Note(card.uuid, contract.EVENT_GPU_UNHEALTHY, sentence, warning=True))
        if card.healthy and was is not None and not was.healthy:
            found.append(Note(card.uuid, contract.EVENT_GPU_HEALTHY, f"{called} is healthy again", warning=False))
    return tuple(found)


def concerned(
    gpu: str, node: GpuNode | None, held: Iterable[pod_resources.ContainerDevices], gpu_of: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The pods that use a GPU, as (namespace, name), by the ledger and by the kubelet. Pure."""
    of_ledger = [
        (entry.pod.namespace, entry.pod.name)
        for entry in (node.allocations if node is not None else ())
        if gpu in entry.gpu_uuids and entry.pod.name and not entry.is_hold
    ]
    of_kubelet = [
        (one.namespace, one.pod)
        for one in held
        if one.resource not in advertisement.COUNTERS
        and any(gpu_of.get(gpu_usage.card_of(identity)) == gpu for identity in one.device_ids)
    ]
    return tuple(dict.fromkeys((*of_ledger, *of_kubelet)))


def announce(
    told: Iterable[Note],
    teller: Teller,
    *,
    pods: Callable[[str], Iterable[tuple[str, str]]],
    reference: Callable[[str, str], Mapping[str, str]],
) -> None:
    """Write the Events. pods: who uses a GPU; reference: of a pod, for the Event."""
    for note in told:
        teller.tell(note.reason, note.sentence, warning=note.warning)
        for namespace, name in pods(note.gpu):
            teller.tell_of(reference(namespace, name), note.reason, note.sentence, warning=note.warning)
