"""What every case gets: the GPU, the report, how long to measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bench.gpu.modes import Mode
from bench.gpu.report import Report
from bench.gpu.tenants import Gpu
from bench.launches.node import Done, Tenant


@dataclasses.dataclass
class Bench:
    """One case of a run."""

    gpu: Gpu
    report: Report
    seconds: float
    warm_ms: int
    rounds: int
    peers: Sequence[Mode] = ()

    async def compete(self, mode: Mode, tenants: Sequence[Tenant]) -> list[Done]:
        """Side by side, for the time that a case has."""
        return await self.gpu.compete(mode, tenants, self.seconds, self.warm_ms)
