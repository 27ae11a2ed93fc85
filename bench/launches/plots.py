"""Plots figures as files; those of bench/interposer.py: shares against requests, and the cost of handovers against
their number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Plot = Callable[[Any, dict[str, float]], bool]  # draws values on the axis, and returns whether it drew any

OURS, NATIVE, AIM = "#1f77b4", "#bbbbbb", "#d62728"


def draw(
    figures: Sequence[dict[str, object]], directory: Path, stem: str, plots: Mapping[str, Plot] | None = None
) -> list[Path]:
    """Write the plots that have figures, and return their files."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = stem  # the same figures give the same file
    from matplotlib import pyplot as plt

    values = {str(figure["figure"]): float(str(figure["value"])) for figure in figures}
    written = []
    for name, plot in (plots or {"shares": _shares, "handover": _handover}).items():
        figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
        if plot(axis, values):
            path = directory / f"{stem}-{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            written.append(path)
        plt.close(figure)
    return written


def _shares(axis: Any, values: dict[str, float]) -> bool:
    splits = [
        (int(match[1]), match[2].replace(".", ", "), value, values.get(f"interposer.native.{match[1]}.{match[2]}"))
        for name, value in values.items()
        if (match := re.fullmatch(r"interposer\.split\.(\d+)\.(\w+\.\w+)", name))
    ]
    places = range(len(splits))
    axis.bar([place - 0.2 for place in places], [split[2] for split in splits], 0.4, color=OURS, label="with leases")
    native = [(place + 0.2, split[3]) for place, split in zip(places, splits, strict=True) if split[3] is not None]
    if native:
        axis.bar(*zip(*native, strict=True), 0.4, color=NATIVE, label="the GPU's own time slices")
    for place, split in zip(places, splits, strict=True):
        axis.plot([place - 0.45, place + 0.45], [split[0], split[0]], color=AIM, label="" if place else "request")
    axis.set_xticks(list(places), [split[1] for split in splits], rotation=60, ha="right", fontsize=8)
    axis.set_ylabel("share of the first of two tenants, %")
    axis.legend(fontsize=8)
    return bool(splits)


def _handover(axis: Any, values: dict[str, float]) -> bool:
    points = sorted(
        (int(match[1]), value)
        for name, value in values.items()
        if (match := re.fullmatch(r"interposer\.handover\.(\d+)ms\.lost", name))
    )
    if points:
        axis.plot(*zip(*points, strict=True), marker="o", color=OURS, label="two tenants that always want")
        axis.axhline(1.0, color=AIM, linewidth=1, label="aim")
        axis.set_xscale("log")
        axis.set_xticks([point[0] for point in points], [str(point[0]) for point in points])
        axis.set_ylim(bottom=min(0.0, *(point[1] for point in points)))
        axis.set_xlabel("length of a turn, ms")
        axis.set_ylabel("lost of the GPU's time, %")
        axis.legend(fontsize=8)
    return bool(points)
