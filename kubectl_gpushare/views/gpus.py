"""`top gpus`: a line per GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpushare.gpu import Mode
from gpushare.gpunode import GpuNode
from kubectl_gpushare import cards, documents
from kubectl_gpushare.cards import Card
from kubectl_gpushare.table import NONE, Cell, Column, Row, Table, sentence
from kubectl_gpushare.views import figures, summary

COLUMNS = (
    Column("NAME", least=14, middle=True),
    Column("MODEL", least=8, leave_out=5),
    Column("MODE", leave_out=9),
    Column("COMPUTE"),
    Column("MEMORY"),
    Column("PODS", leave_out=4),
    Column("FREE", leave_out=8),
    Column("LARGEST", leave_out=3),
    Column("FRAG", leave_out=6),
    Column("STATUS", least=8, leave_out=1),
    Column("UUID", wide=True, least=12),
    Column("PCI", wide=True),
    Column("NUMA", wide=True),
    Column("CC", wide=True),
    Column("REASON", wide=True, least=20),
)

# Column a list may be sorted by -> (key, largest first).
SORT_KEYS: Mapping[str, tuple[Callable[[Card], Any], bool]] = {
    "name": (lambda card: (cards.natural(card.node), card.gpu.index), False),
    "model": (lambda card: card.gpu.model, False),
    "mode": (lambda card: card.gpu.mode.value, False),
    "compute": (lambda card: card.used.request_percent, True),
    "memory": (lambda card: card.used.memory_bytes, True),
    "pods": (lambda card: len(card.used.holders), True),
    "free": (lambda card: cards.stranded(card)[0], True),
    "largest": (lambda card: card.largest or (-1, 0), True),
    "frag": (lambda card: _ratio(*cards.stranded(card)), True),
    "status": (lambda card: card.statuses, True),
}


def of(nodes: Iterable[GpuNode], sort_by: str = "") -> list[Card]:
    """All cards of the nodes, sorted by a column, by name where that is equal."""
    key, largest_first = SORT_KEYS[sort_by or "name"]
    found = cards.of(nodes)
    return sorted(found, key=key, reverse=largest_first) if sort_by else found


def table(found: Sequence[Card]) -> Table:
    """The cards as a table with totals."""
    total = cards.add_up(found)
    return Table(COLUMNS, [_row(card) for card in found], _totals(total), summary.sentence(found, total), "GPUs")


def document(found: Sequence[Card]) -> dict[str, Any]:
    """The cards as a `GPUList`."""
    return documents.listing(
        "GPUList", [item(card) for card in found], totals=figures.sum_document(cards.add_up(found))
    )


def item(card: Card) -> dict[str, Any]:
    """A card in a document."""
    percent, memory_bytes = card.free
    free, stranded = cards.stranded(card)
    gpu = card.gpu
    return {
        "name": card.name,
        "node": card.node,
        "index": None if card.gone else gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "mode": gpu.mode.value,
        "status": list(card.statuses) or ["Ready"],
        "reason": gpu.health_reason,
        "healthy": gpu.healthy,
        "cordoned": gpu.cordoned,
        "compute": {
            "allocatedPercent": card.used.request_percent,
            "totalPercent": 100 if card.shared else 0,
            "freePercent": percent,
        },
        "memory": {
            "allocatedBytes": card.used.memory_bytes,
            "totalBytes": gpu.memory_bytes,
            "freeBytes": memory_bytes,
        },
        "pods": len(card.used.holders),
        "freeGpus": round(free, 4),
        "strandedGpus": round(stranded, 4),
        "fragmentationRatio": round(_ratio(free, stranded), 4),
        "pciBusID": gpu.pci_bus_id,
        "numaNode": gpu.numa_node,
        "computeCapability": figures.capability(gpu),
    }


def name(card: Card) -> str:
    """As `-o name` has it."""
    return f"gpu.gpushare.io/{card.name}"


def _row(card: Card) -> Row:
    gpu, used = card.gpu, card.used
    free, stranded = cards.stranded(card)
    # Who holds a GPU of another mode is known to the kubelet, not to the ledger.
    known = card.shared or used.holders
    return (
        card.name,
        figures.model(gpu),
        NONE if card.gone else _mode(gpu.mode),
        figures.compute(used.request_percent, 0 if card.gone else 100) if known else figures.unknown(),
        figures.memory(used.memory_bytes, gpu.memory_bytes) if known else figures.unknown(),
        str(len(used.holders)) if known else NONE,
        figures.gpus(free),
        figures.largest(card),
        figures.fragmentation(free, stranded),
        figures.status(card.statuses),
        gpu.uuid,
        gpu.pci_bus_id or NONE,
        NONE if gpu.numa_node is None else str(gpu.numa_node),
        figures.capability(gpu) or NONE,
        sentence(gpu.health_reason),
    )


def _totals(total: cards.Sum) -> Row:
    return (
        Cell("TOTAL", "bold"),
        f"{total.gpus}-{'GPU' if total.gpus == 1 else 'GPUs'}",
        "",
        figures.compute(total.request_percent, total.total_percent),
        figures.memory(total.memory_bytes, total.total_memory_bytes),
        str(total.pods),
        figures.gpus(total.free_gpus),
        figures.largest(total.largest),
        figures.fragmentation(total.free_gpus, total.stranded_gpus),
        *[""] * 6,
    )


def _mode(mode: Mode) -> str | Cell:
    return mode.value if mode is Mode.FRACTIONAL else Cell(mode.value, "dim")


def _ratio(free: float, stranded: float) -> float:
    return stranded / free if free > 0 else 0.0
