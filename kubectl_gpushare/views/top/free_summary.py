"""The sentence above a table: the free capacity, how much of it is stranded and why, and the largest share that
fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpushare import quantity
from kubectl_gpushare.views import gpu_summary


def sentence(all_gpus: Sequence[gpu_summary.GpuSummary], total: gpu_summary.Sum) -> str:
    """Return a sentence such as `free 11.4 with 800Gi of 40 GPUs, 53% of it stranded: 38 GPUs have less than the
    typical 0.5 left; …`.
    """
    if not total.total_percent:
        return "no GPU takes shares by annotation"
    if not any(total.free):
        return f"nothing is free on {_plural(total.gpus, 'GPU')}"
    percent, memory_bytes = total.free
    size = f"{quantity.format_compute(percent)} with {quantity.format_bytes(memory_bytes)}"
    text = f"free {size} of {_plural(total.total_percent // 100, 'GPU')}"
    if total.stranded_gpus >= 0.005:
        text += f", {total.fragmentation:.0%} of it stranded"
    short = [gpu for gpu in all_gpus if gpu.shared and any(gpu.free) and _too_small(gpu)]
    if short:
        size = quantity.format_compute(round(short[0].typical.compute * 100))
        have = "has" if len(short) == 1 else "have"
        text += f": {_plural(len(short), 'GPU')} {have} less than the typical {size} left"
    if total.largest:
        percent, memory_bytes = total.largest.free
        size = f"{quantity.format_compute(percent)} with {quantity.format_bytes(memory_bytes)}"
        text += f"; largest single share {size} on {total.largest.name}"
    return text


def _too_small(gpu: gpu_summary.GpuSummary) -> bool:
    percent, memory_bytes = gpu.free
    return percent < gpu.typical.compute * 100 or memory_bytes < gpu.typical.memory * gpu.gpu.memory_bytes


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
