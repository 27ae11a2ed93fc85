"""The sentence above a table: what is free, how much of it is stranded and why, and the largest share that fits."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare import quantity
from gpushare.typical import DEFAULT_MIX, Typical
from kubectl_gpushare.views import gpu_summary


def sentence(all_cards: Sequence[gpu_summary.GpuSummary], total: gpu_summary.Sum) -> str:
    """As `free 11.4 with 800Gi of 40 GPUs, 53% of it stranded: 38 GPUs have less than the typical 0.5 left; …`."""
    if not total.total_percent:
        return "no GPU takes shares by annotation"
    if not any(total.free):
        return f"nothing is free on {_plural(total.gpus, 'GPU')}"
    percent, memory_bytes = total.free
    size = f"{quantity.format_compute(percent)} with {quantity.format_bytes(memory_bytes)}"
    text = f"free {size} of {_plural(total.total_percent // 100, 'GPU')}"
    if total.stranded_gpus >= 0.005:
        text += f", {total.fragmentation:.0%} of it stranded"
    typical = typical_request()
    short = sum(_too_small(card, typical) for card in all_cards if card.shared and any(card.free))
    if short:
        size = quantity.format_compute(round(typical.compute * 100))
        text += f": {_plural(short, 'GPU')} {'has' if short == 1 else 'have'} less than the typical {size} left"
    if total.largest:
        percent, memory_bytes = total.largest.free
        size = f"{quantity.format_compute(percent)} with {quantity.format_bytes(memory_bytes)}"
        text += f"; largest single share {size} on {total.largest.name}"
    return text


def typical_request(mix: Sequence[Typical] = DEFAULT_MIX) -> Typical:
    """The median of the mix: half of the requests are at least as large."""
    half = sum(typical.weight for typical in mix) / 2
    seen = 0.0
    for typical in sorted(mix, key=lambda typical: (typical.compute, typical.memory), reverse=True):
        seen += typical.weight
        if seen >= half:
            return typical
    raise ValueError("the mix is empty")


def _too_small(card: gpu_summary.GpuSummary, typical: Typical) -> bool:
    percent, memory_bytes = card.free
    return percent < typical.compute * 100 or memory_bytes < typical.memory * card.gpu.memory_bytes


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
