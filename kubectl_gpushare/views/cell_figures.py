"""Formats figures for every view: parts of GPUs, memory, per cent; and the cells made of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from gpushare import quantity
from gpushare.gpu_capacity import Fragmentation
from gpushare.gpunode import Gpu
from kubectl_gpushare.output.values import NONE, UNKNOWN, Cell, Column, Table, plain
from kubectl_gpushare.source import live_usage
from kubectl_gpushare.source.live_usage import Used
from kubectl_gpushare.views import gpu_summary

ISOLATION = Column("ISOLATION", leave_out=7)  # shown only if some GPU or share has another than `arbiter`
USED_COLUMNS = (Column("USED", leave_out=2), Column("BUSY", leave_out=1))

_ONCE = functools.lru_cache(maxsize=4096)  # among thousands of GPUs many cells are equal


@_ONCE
def _model(name: str) -> str:
    return plain(name.removeprefix("NVIDIA "))


def model(gpu: Gpu) -> str:
    return _model(gpu.model)


def capability(gpu: Gpu) -> str:
    return "{}.{}".format(*gpu.compute_capability) if any(gpu.compute_capability) else ""


@_ONCE
def compute(used_percent: int, total_percent: int) -> Cell:
    return _ratio(used_percent, total_percent, quantity.format_compute, "compute")


@_ONCE
def memory(used_bytes: int, total_bytes: int) -> Cell:
    return _ratio(used_bytes, total_bytes, quantity.format_bytes, "memory")


def _ratio(used: int, total: int, write: Callable[[int], str], style: str) -> Cell:
    over = "bad" if used > total else ""
    return Cell(f"{write(used)}/{write(total)}", over, used / total if total else 0.0, over or style)


@_ONCE
def gpus(count: float) -> str:
    return f"{count:.2f}".rstrip("0").rstrip(".") if count < 10 else f"{count:.1f}".removesuffix(".0")


@_ONCE
def share(percent: int, memory_bytes: int) -> str:
    return f"{quantity.format_compute(percent)}+{quantity.format_bytes(memory_bytes)}"


def free(percent: int, memory_bytes: int) -> str:
    return share(percent, memory_bytes) if percent or memory_bytes else "0"


def largest(gpu: gpu_summary.GpuSummary | None) -> str:
    fitting = gpu.largest if gpu else None
    return share(*fitting) if fitting else NONE


@_ONCE
def fragmentation(free: float, stranded: float) -> str | Cell:
    """Return the stranded part of what is free, in per cent; coloured as a warning from 25 %, as bad from 75 %."""
    part = stranded / free if free > 0 else 0.0
    text = f"{part:.0%}"
    if part < 0.25:
        return text
    return Cell(text, "bad" if part >= 0.75 else "warn")


@_ONCE
def status(words: tuple[str, ...]) -> Cell:
    if not words:
        return Cell("Ready", "good")
    bad = any(word.partition(":")[0] in {"OverCommitted", "Unhealthy", "Gone"} for word in words)
    return Cell(",".join(words), "bad" if bad else "warn")


def unknown() -> Cell:
    return Cell(UNKNOWN, "dim")


def used(measured: Used | None, given_bytes: int, count: int) -> tuple[str | Cell, str | Cell]:
    """Return USED and BUSY of `count` GPUs; coloured if they use more than their memory, or less than a quarter."""
    if measured is None:
        return unknown(), unknown()
    text = quantity.format_bytes(measured.memory_bytes)
    style = "bad" if measured.memory_bytes > given_bytes else "warn" if measured.memory_bytes * 4 < given_bytes else ""
    return Cell(text, style), _busy(measured, count)


def used_in_all(parts: Sequence[Used | None], count: int) -> tuple[str | Cell, str | Cell]:
    """Return USED and BUSY of `count` GPUs in all; with an unknown part the least that is used, as `≥0.34/4`."""
    known = [part for part in parts if part is not None]
    if not known:
        return (unknown(), unknown()) if parts else ("", "")
    total = live_usage.total(known)
    least = "≥" if len(known) < len(parts) else ""
    return least + quantity.format_bytes(total.memory_bytes), _busy(total, count, bound=bool(least))


def _busy(measured: Used, count: int, *, bound: bool = False) -> str | Cell:
    """Return `0.62/1`: the part of the GPUs' time in which kernels ran, as a number of GPUs, and all GPUs."""
    least = bound or measured.bound
    text = gpus(measured.compute_percent / 100)
    return unknown() if least and text == "0" else f"{'≥' if least else ''}{text}/{count}"


def by_usage(measured: Used | None) -> tuple[int, float]:
    return (-1, -1.0) if measured is None else (measured.memory_bytes, measured.compute_percent)


class Line(Protocol):
    """A line with figures of some GPUs."""

    @property
    def statuses(self) -> tuple[str, ...]: ...


SomeLine = TypeVar("SomeLine", bound=Line)


def sort_keys(
    total: Callable[[SomeLine], gpu_summary.Sum], used: Callable[[SomeLine], Used | None]
) -> dict[str, tuple[Callable[[SomeLine], Any], bool]]:
    """Return the sort key of each column that lists of GPUs and of nodes share, and whether the largest come first."""

    def largest(line: SomeLine) -> tuple[int, int]:
        gpu = total(line).largest
        return (gpu and gpu.largest) or (-1, 0)

    return {
        "compute": (lambda line: total(line).request_percent, True),
        "memory": (lambda line: total(line).memory_bytes, True),
        "pods": (lambda line: total(line).pods, True),
        "free": (lambda line: total(line).free, True),
        "largest": (largest, True),
        "frag": (lambda line: total(line).fragmentation, True),
        "status": (lambda line: line.statuses, True),
        "used": (lambda line: by_usage(used(line))[0], True),
        "busy": (lambda line: by_usage(used(line))[1], True),
    }


def sum_cells(total: gpu_summary.Sum, used: Sequence[Used | None] | None) -> dict[str, str | Cell]:
    return {
        "COMPUTE": compute(total.request_percent, total.total_percent),
        "MEMORY": memory(total.memory_bytes, total.total_memory_bytes),
        **(by_column(*used_in_all(used, len(used))) if used is not None else {}),
        "PODS": str(total.pods),
        "FREE": free(*total.free),
        "LARGEST": largest(total.largest),
        "FRAG": fragmentation(total.free_gpus, total.stranded_gpus),
    }


def by_column(*usage: str | Cell) -> dict[str, str | Cell]:
    return {column.header: cell for column, cell in zip(USED_COLUMNS, usage, strict=True)}


def used_document(measured: Used | None) -> dict[str, Any]:
    if measured is None:
        return {}
    compute = None if measured.bound else round(measured.compute_percent, 2)
    return {"used": {"memoryBytes": measured.memory_bytes, "computePercent": compute}}


def unused(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(column for column in columns if column not in USED_COLUMNS)


def without(whole: Table, columns: Sequence[Column]) -> Table:
    kept = [place for place, column in enumerate(whole.columns) if column not in columns]
    return dataclasses.replace(
        whole,
        columns=tuple(whole.columns[place] for place in kept),
        rows=[[row[place] for place in kept] for row in whole.rows],
    )


def compute_document(allocated: int, total: int, free: int) -> dict[str, int]:
    return {"allocatedPercent": allocated, "totalPercent": total, "freePercent": free}


def memory_document(allocated: int, total: int, free: int) -> dict[str, int]:
    return {"allocatedBytes": allocated, "totalBytes": total, "freeBytes": free}


def sum_document(total: gpu_summary.Sum) -> dict[str, Any]:
    fitting = total.largest.largest if total.largest else None
    return {
        "gpus": total.gpus,
        "pods": total.pods,
        "compute": compute_document(total.request_percent, total.total_percent, total.free[0]),
        "memory": memory_document(total.memory_bytes, total.total_memory_bytes, total.free[1]),
        "freeGpus": round(total.free_gpus, 4),
        "strandedGpus": round(total.stranded_gpus, 4),
        "fragmentationRatio": round(total.fragmentation, 4),
        "largest": {
            "gpu": total.largest.name if total.largest else "",
            "computePercent": fitting[0] if fitting else 0,
            "memoryBytes": fitting[1] if fitting else 0,
        },
    }


def fragmentation_document(measured: Fragmentation) -> dict[str, Any]:
    return {
        "freeGpus": round(measured.free_gpus, 4),
        "strandedGpus": round(measured.stranded_gpus, 4),
        "fragmentationRatio": round(measured.ratio, 4),
        "largestPercent": measured.largest_percent,
        "largestMemoryBytes": measured.largest_memory_bytes,
    }
