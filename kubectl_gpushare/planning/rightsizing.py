"""Rightsizing: the size that a share needs, from a margin and its peaks, as the agents measured them. Pure.

Memory is a hard limit, so the suggestion follows the peak both ways. Compute is only reduced: use beyond the request
was idle time, and proves no need for a guarantee. There is no suggestion after too short an observation.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpushare.allocation import Allocation, GivenShare
from gpushare.gpunode import GpuNode
from kubectl_gpushare.source import live_usage

PEAK_MEMORY = "gpushare_share_peak_memory_bytes"
PEAK_COMPUTE = "gpushare_share_peak_compute_ratio"  # the highest mean of 10 s; 1 is the GPU
OBSERVED_SECONDS = "gpushare_share_observed_seconds"

ShareKey = tuple[str, str, tuple[str, ...], str]  # namespace, pod, containers, UUID of the GPU


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedPeak:
    """The peak of a share on one GPU. None: not measured, or not reported by the agent."""

    memory_bytes: int | None = None
    compute_ratio: float | None = None
    observed_seconds: float = 0.0


def parse_peaks(texts: Iterable[str]) -> dict[ShareKey, ReportedPeak]:
    peaks: dict[ShareKey, ReportedPeak] = {}
    for text in texts:
        for name, labels, value in live_usage.samples(text, (PEAK_MEMORY, PEAK_COMPUTE, OBSERVED_SECONDS)):
            containers = tuple(part for part in labels.get("containers", "").split(",") if part)
            key = (labels.get("namespace", ""), labels.get("pod", ""), containers, labels.get("gpu", ""))
            known = peaks.get(key, ReportedPeak())
            if name == PEAK_MEMORY:
                peaks[key] = dataclasses.replace(known, memory_bytes=max(known.memory_bytes or 0, int(value)))
            elif name == PEAK_COMPUTE:
                peaks[key] = dataclasses.replace(known, compute_ratio=max(known.compute_ratio or 0.0, value))
            else:
                peaks[key] = dataclasses.replace(known, observed_seconds=max(known.observed_seconds, value))
    return peaks


# (sizes below this, in bytes; are rounded up to a multiple of this)
MEMORY_STEPS_BYTES: Final = ((4 * 2**30, 256 * 2**20), (math.inf, 2**30))
COMPUTE_STEP_PERCENT: Final = 5


class Advice(enum.StrEnum):
    """The advice about a share."""

    SHRINK = "Shrink"
    GROW = "Grow"
    FITS = "Fits"
    TOO_SHORT = "TooShort"  # observed for too short a time
    UNKNOWN = "Unknown"  # not observed, or its agent did not answer


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """`margin`: added to a peak, as a part of it (0.2 is 20 %)."""

    margin: float = 0.2
    min_observed_seconds: float = 1800.0


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """The size of a share on each of its GPUs."""

    request_percent: int
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Suggestion:
    """A share of a pod: its size, its highest peak on any of its GPUs, and the suggested size."""

    node: str
    namespace: str
    pod: str
    containers: tuple[str, ...]
    gpus: tuple[str, ...]  # UUIDs
    several: bool  # whether other containers of the pod have separate shares
    held: Size
    limit_percent: int
    peak: ReportedPeak
    advice: Advice
    reason: str = ""
    wanted: Size | None = None  # None: no suggestion

    @property
    def freed(self) -> Size:
        """The amounts that it would free on each of its GPUs; negative if it grows."""
        if self.wanted is None:
            return Size(0, 0)
        held, wanted = self.held, self.wanted
        return Size(held.request_percent - wanted.request_percent, held.memory_bytes - wanted.memory_bytes)


def suggest(nodes: Iterable[GpuNode], reported: Mapping[ShareKey, ReportedPeak], rules: Rules) -> list[Suggestion]:
    return [
        _suggestion(node, entry, shares, reported, rules)
        for node in nodes
        for entry in node.allocations
        if not entry.is_backfill_reservation and entry.reserved_until is None
        for shares in _alike(entry)
    ]


def freed(suggestions: Iterable[Suggestion]) -> dict[str, Size]:
    sums: dict[str, Size] = {}
    for suggestion in suggestions:
        for uuid in suggestion.gpus if suggestion.wanted else ():
            sums[uuid] = total([sums.get(uuid, Size(0, 0)), suggestion.freed])
    return sums


def total(sizes: Iterable[Size]) -> Size:
    sizes = list(sizes)
    return Size(sum(size.request_percent for size in sizes), sum(size.memory_bytes for size in sizes))


_UNSEEN: Final = ReportedPeak()


def _alike(entry: Allocation) -> Iterator[list[GivenShare]]:
    """Yield the shares of the same containers: one request, though the bytes may differ from model to model."""
    groups: dict[tuple[str, ...], list[GivenShare]] = {}
    for share in entry.shares:
        groups.setdefault(share.containers, []).append(share)
    yield from groups.values()


def _suggestion(
    node: GpuNode,
    entry: Allocation,
    shares: Sequence[GivenShare],
    reported: Mapping[ShareKey, ReportedPeak],
    rules: Rules,
) -> Suggestion:
    containers, uuids = shares[0].containers, tuple(uuid for share in shares for uuid in share.gpu_uuids)
    keys = [(entry.pod.namespace, entry.pod.name, containers, uuid) for uuid in uuids]
    peak = _highest([reported.get(key, _UNSEEN) for key in keys])
    held = Size(max(share.request_percent for share in shares), max(share.memory_bytes for share in shares))
    known = Suggestion(
        node.name,
        entry.pod.namespace,
        entry.pod.name,
        containers,
        uuids,
        len({share.containers for share in entry.shares}) > 1,
        held,
        max(share.limit_percent for share in shares),
        peak,
        Advice.UNKNOWN,
    )
    if peak.memory_bytes is None:
        seen = any(reported.get(key, _UNSEEN).memory_bytes is not None for key in keys)
        where = " on some of its GPUs" if seen else ""
        return dataclasses.replace(known, reason=f"no process of it was seen{where}")
    if peak.observed_seconds < rules.min_observed_seconds:
        return dataclasses.replace(known, advice=Advice.TOO_SHORT, reason="seen for less than --min-observed")
    if not peak.memory_bytes and not peak.compute_ratio:
        return dataclasses.replace(known, reason="it has not used the GPU at all: does it need one?")
    most_bytes = min((gpu.memory_bytes for gpu in node.gpus if gpu.uuid in uuids), default=held.memory_bytes)
    needed_bytes = peak.memory_bytes * (1 + rules.margin)
    # Steps round up sizes that have to be written down; a size that is already enough stays as it is.
    most_bytes = min(most_bytes, held.memory_bytes) if needed_bytes <= held.memory_bytes else most_bytes
    request_percent = held.request_percent
    if request_percent and peak.compute_ratio is not None:
        needed_percent = peak.compute_ratio * 100 * (1 + rules.margin)
        request_percent = min(request_percent, _rounded_up(needed_percent, COMPUTE_STEP_PERCENT))
    step = next(step for below, step in MEMORY_STEPS_BYTES if needed_bytes < below)
    wanted = Size(request_percent, min(_rounded_up(needed_bytes, step), most_bytes))
    if wanted == held:
        return dataclasses.replace(known, advice=Advice.FITS, reason=_remark(known))
    advice = Advice.GROW if wanted.memory_bytes > held.memory_bytes else Advice.SHRINK
    return dataclasses.replace(known, advice=advice, reason=_remark(known), wanted=wanted)


def _highest(known: Sequence[ReportedPeak]) -> ReportedPeak:
    memory = [peak.memory_bytes for peak in known if peak.memory_bytes is not None]
    compute = [peak.compute_ratio for peak in known if peak.compute_ratio is not None]
    return ReportedPeak(
        max(memory) if len(memory) == len(known) else None,
        max(compute) if len(compute) == len(known) else None,
        min(peak.observed_seconds for peak in known),
    )


def _rounded_up(amount: float, step: int) -> int:
    # 0.3 × 100 × 1.2 is slightly more than 36 in floating point
    return max(1, math.ceil(round(amount / step, 6))) * step


def _remark(suggestion: Suggestion) -> str:
    ratio = suggestion.peak.compute_ratio
    if ratio is None and suggestion.held.request_percent:
        return "its compute was not measured, because no other share wanted the GPU"
    if ratio is not None and ratio * 100 > suggestion.held.request_percent > 0:
        return "it used more compute than its request, while others left it idle"
    return ""
