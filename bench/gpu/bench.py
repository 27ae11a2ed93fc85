"""What every case gets: the GPU, the report, how long to measure."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.report import Report
from bench.gpu.tenants import Gpu, ProgramError
from bench.launches.node import Done, Tenant


@dataclasses.dataclass
class Bench:
    """One case of a run. directory: for its files; peers: the other modes that it compares with."""

    gpu: Gpu
    report: Report
    seconds: float
    warm_ms: int
    rounds: int
    directory: Path
    peers: Sequence[Mode] = ()

    @property
    def modes(self) -> tuple[Mode, ...]:
        """All of them, the bare GPU first."""
        return (NATIVE, OURS, *self.peers)

    @contextlib.contextmanager
    def row(self, name: str) -> Iterator[None]:
        """A part of a case that may fail by itself: the failure is reported, and the case goes on."""
        try:
            yield
        except (ProgramError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
            self.report.fail(name, error)

    async def compete(self, mode: Mode, tenants: Sequence[Tenant]) -> list[Done]:
        """Side by side, for the time that a case has."""
        return await self.gpu.compete(mode, tenants, self.seconds, self.warm_ms)
