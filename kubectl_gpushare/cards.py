"""Card: one GPU with what is used of it, as every view looks at it; and what some cards add up to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from gpushare import fragmentation, ledger
from gpushare.gpu import Gpu, Mode
from gpushare.gpunode import GpuNode

_DIGITS = re.compile(r"(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A GPU of a node. `gone`: allocations name it, but the node has it no more."""

    node: str
    gpu: Gpu
    used: ledger.Use
    gone: bool = False

    @property
    def name(self) -> str:
        """`NODE/INDEX`, or `NODE/UUID` of one that is gone."""
        return f"{self.node}/{self.gpu.uuid if self.gone else self.gpu.index}"

    @property
    def shared(self) -> bool:
        """Whether it is there and takes shares by annotation, be it only in principle."""
        return self.gpu.mode is Mode.FRACTIONAL and not self.gone

    @property
    def over_committed(self) -> bool:
        """Whether more is given than there is."""
        return self.used.request_percent > 100 or self.used.memory_bytes > self.gpu.memory_bytes

    @property
    def free(self) -> tuple[int, int]:
        """Compute in per cent and memory in bytes that a new share could get now."""
        return (0, 0) if self.gone else fragmentation.free(self.gpu, self.used)

    @property
    def largest(self) -> tuple[int, int] | None:
        """The largest share that still fits, None if none does: every share needs memory."""
        free = self.free
        return free if free[1] else None

    @property
    def statuses(self) -> tuple[str, ...]:
        """What is the matter with it, worst first; empty if nothing is."""
        if self.gone:
            return ("Gone",)
        found = []
        if self.over_committed:
            found.append("OverCommitted")
        if not self.gpu.healthy:
            found.append("Unhealthy")
        if self.gpu.cordoned:
            found.append("Cordoned")
        return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """What some cards add up to; compute and memory count those that take shares by annotation."""

    gpus: int
    pods: int
    request_percent: int
    total_percent: int
    memory_bytes: int
    total_memory_bytes: int
    free_gpus: float  # free part, in GPUs: the mean of compute and memory
    stranded_gpus: float  # of that, what the typical request cannot use
    largest: Card | None  # the card on which the largest share still fits

    @property
    def fragmentation(self) -> float:
        """Stranded part of what is free, 0 to 1."""
        return self.stranded_gpus / self.free_gpus if self.free_gpus > 0 else 0.0


def of(nodes: Iterable[GpuNode]) -> list[Card]:
    """All cards of the nodes, by node name and index; those that are gone last on their node."""
    cards = []
    for node in sorted(nodes, key=lambda one: natural(one.name)):
        used = ledger.use(node)
        there = sorted(node.gpus, key=lambda gpu: gpu.index)
        cards += [Card(node.name, gpu, used[gpu.uuid]) for gpu in there]
        if len(used) > len(there):
            known = {gpu.uuid for gpu in there}
            cards += [
                Card(node.name, Gpu(uuid, -1, "", 0, healthy=False, health_reason="the node has it no more"), use, True)
                for uuid, use in sorted(used.items())
                if uuid not in known
            ]
    return cards


def stranded(card: Card) -> tuple[float, float]:
    """`(free, stranded)` of a card, as parts of it."""
    return (0.0, 0.0) if card.gone else fragmentation.stranded(card.gpu, card.used)


def add_up(cards: Sequence[Card]) -> Sum:
    """The sum of the cards; a pod on several of them counts once."""
    shared = [card for card in cards if card.shared]
    parts = [stranded(card) for card in shared]
    fitting = [card for card in shared if card.largest]
    return Sum(
        gpus=sum(not card.gone for card in cards),
        pods=len({holder.id for card in cards for holder in card.used.holders}),
        request_percent=sum(card.used.request_percent for card in shared),
        total_percent=100 * len(shared),
        memory_bytes=sum(card.used.memory_bytes for card in shared),
        total_memory_bytes=sum(card.gpu.memory_bytes for card in shared),
        free_gpus=sum(free for free, _ in parts),
        stranded_gpus=sum(lost for _, lost in parts),
        largest=max(fitting, key=lambda card: card.free, default=None),
    )


def natural(name: str) -> list[tuple[int, int | str]]:
    """A sort key by which `node-2` comes before `node-10`."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(name) if part]
