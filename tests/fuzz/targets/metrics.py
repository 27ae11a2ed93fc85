"""An agent's metrics, as `top` and `rightsize` read them."""

from __future__ import annotations

import math

from kubectl_gpushare.planning import rightsizing
from kubectl_gpushare.source import live_usage


def run(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    usage = live_usage.parse({"gpu-1": text})
    for used in (*usage.shares.values(), *usage.gpus.values()):
        assert isinstance(used.memory_bytes, int)
        assert math.isfinite(used.compute_percent)
    for peak in rightsizing.parse_peaks([text]).values():
        assert peak.compute_ratio is None or math.isfinite(peak.compute_ratio)
