"""Peaks: the maximum use of shares since their first process started, as measured by the agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import inputs, live_usage

MEMORY = "gpushare_share_peak_memory_bytes"
COMPUTE = "gpushare_share_peak_compute_ratio"  # the highest mean of 10 s; 1 is the GPU
OBSERVED = "gpushare_share_observed_seconds"

Key = tuple[str, str, tuple[str, ...], str]  # namespace, pod, containers, UUID of the GPU


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedPeak:
    """The peak of a share on one GPU. None: not measured, or not reported by the agent."""

    memory_bytes: int | None = None
    compute_ratio: float | None = None
    observed_seconds: float = 0.0


def parse(texts: Iterable[str]) -> dict[Key, ReportedPeak]:
    """Return the peaks in the metrics of some agents; of repeated ones, the highest."""
    peaks: dict[Key, ReportedPeak] = {}
    for text in texts:
        for name, labels, value in live_usage.samples(text, (MEMORY, COMPUTE, OBSERVED)):
            containers = tuple(part for part in labels.get("containers", "").split(",") if part)
            key = (labels.get("namespace", ""), labels.get("pod", ""), containers, labels.get("gpu", ""))
            peaks[key] = _higher(peaks.get(key, ReportedPeak()), name, value)
    return peaks


def saved(paths: Iterable[str]) -> dict[Key, ReportedPeak]:
    """Return the peaks in files, as agents or a Prometheus print them. Raises `FileError`."""
    texts = []
    for path in paths:
        texts.append(inputs.text(path))
        if f"\n{MEMORY}{{" not in f"\n{texts[-1]}":
            raise plugin_errors.FileError(
                f"{inputs.name(path)} has no {MEMORY}: save what an agent answers at /metrics"
            )
    return parse(texts)


def _higher(known: ReportedPeak, name: str, value: float) -> ReportedPeak:
    if name == MEMORY:
        return dataclasses.replace(known, memory_bytes=max(known.memory_bytes or 0, int(value)))
    if name == COMPUTE:
        return dataclasses.replace(known, compute_ratio=max(known.compute_ratio or 0.0, value))
    return dataclasses.replace(known, observed_seconds=max(known.observed_seconds, value))
