"""The input of a case: the GPU, the report, the length of a window."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import Iterator, Sequence

from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.report import Report
from bench.gpu.tenants import Gpu, ProgramError
from bench.launches.node import Done, Tenant


@dataclasses.dataclass
class Bench:
    """One case of a run. peers: further modes to compare with."""

    gpu: Gpu
    report: Report
    seconds: float
    warm_ms: int
    rounds: int
    peers: Sequence[Mode] = ()

    @property
    def modes(self) -> tuple[Mode, ...]:
        """All modes, the bare GPU first."""
        return (NATIVE, OURS, *self.peers)

    @contextlib.contextmanager
    def row(self, name: str) -> Iterator[None]:
        """Report a failure inside the block as a failed row, and go on with the case."""
        try:
            yield
        except (ProgramError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
            self.report.fail(name, error)

    async def compete(self, mode: Mode, tenants: Sequence[Tenant]) -> list[Done]:
        """Run tenants side by side for one window."""
        return await self.gpu.compete(mode, tenants, self.seconds, self.warm_ms)
