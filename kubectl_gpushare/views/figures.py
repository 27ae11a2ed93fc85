"""How figures read in every view: parts of GPUs, memory, per cent; and the cells made of them."""

from __future__ import annotations

from typing import Any

from gpushare import quantity
from gpushare.gpu import Gpu
from kubectl_gpushare import cards
from kubectl_gpushare.table import NONE, UNKNOWN, Cell, plain

_VENDOR = "NVIDIA "


def model(gpu: Gpu) -> str:
    """The model in a cell, short: `A100-SXM4-80GB`."""
    return plain(gpu.model.removeprefix(_VENDOR))


def capability(gpu: Gpu) -> str:
    """The compute capability, `8.0`; empty if it is not known."""
    return "{}.{}".format(*gpu.compute_capability) if any(gpu.compute_capability) else ""


def compute(used_percent: int, total_percent: int) -> Cell:
    """`0.75/1` with its bar."""
    return _ratio(
        used_percent,
        total_percent,
        quantity.format_compute(used_percent),
        quantity.format_compute(total_percent),
        "compute",
    )


def memory(used_bytes: int, total_bytes: int) -> Cell:
    """`60Gi/80Gi` with its bar."""
    return _ratio(
        used_bytes, total_bytes, quantity.format_bytes(used_bytes), quantity.format_bytes(total_bytes), "memory"
    )


def _ratio(used: int, total: int, used_text: str, total_text: str, style: str) -> Cell:
    over = used > total
    return Cell(
        f"{used_text}/{total_text}", "bad" if over else "", used / total if total else 0.0, "bad" if over else style
    )


def gpus(count: float) -> str:
    """A number of GPUs: `0.25`, `11.4`, `1200`."""
    return f"{count:.2f}".rstrip("0").rstrip(".") if count < 10 else f"{count:.1f}".removesuffix(".0")


def share(percent: int, memory_bytes: int) -> str:
    """A share in a cell: compute and memory, `0.25+20Gi`."""
    return f"{quantity.format_compute(percent)}+{quantity.format_bytes(memory_bytes)}"


def largest(card: cards.Card | None) -> str:
    """The largest share that fits on a card."""
    fitting = card.largest if card else None
    return share(*fitting) if fitting else NONE


def fragmentation(free: float, stranded: float) -> str | Cell:
    """The stranded part of what is free, in per cent: a word of warning from a quarter on."""
    part = stranded / free if free > 0 else 0.0
    text = f"{part:.0%}"
    if part < 0.25:
        return text
    return Cell(text, "bad" if part >= 0.75 else "warn")


_WORST = {"OverCommitted": "bad", "Unhealthy": "bad", "Gone": "bad"}


def status(words: tuple[str, ...], *, ready: str = "Ready") -> Cell:
    """`Ready`, or what is the matter."""
    if not words:
        return Cell(ready, "good")
    bad = any(_WORST.get(word.partition(":")[0]) for word in words)
    return Cell(",".join(words), "bad" if bad else "warn")


def unknown() -> Cell:
    """What the ledger does not know."""
    return Cell(UNKNOWN, "dim")


def sum_document(total: cards.Sum) -> dict[str, Any]:
    """A `Sum` in a document of `-o json`."""
    fitting = total.largest.largest if total.largest else None
    return {
        "gpus": total.gpus,
        "pods": total.pods,
        "compute": {"allocatedPercent": total.request_percent, "totalPercent": total.total_percent},
        "memory": {"allocatedBytes": total.memory_bytes, "totalBytes": total.total_memory_bytes},
        "freeGpus": round(total.free_gpus, 4),
        "strandedGpus": round(total.stranded_gpus, 4),
        "fragmentationRatio": round(total.fragmentation, 4),
        "largest": {
            "gpu": total.largest.name if total.largest else "",
            "computePercent": fitting[0] if fitting else 0,
            "memoryBytes": fitting[1] if fitting else 0,
        },
    }
