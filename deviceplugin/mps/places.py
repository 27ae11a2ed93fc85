"""The files of an MPS daemon, below the root that the config names (`mpsRoot`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

SHM: Final = "shm"
READY: Final = ".ready"


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """name: of the daemon: a GPU's UUID, or a resource where one daemon has all GPUs of it."""

    root: Path
    name: str

    @property
    def directory(self) -> Path:
        """All that is the daemon's own."""
        return self.root / self.name

    @property
    def pipe(self) -> Path:
        """The directory in which clients find the daemon."""
        return self.directory / "pipe"

    @property
    def log(self) -> Path:
        """Where it writes what it does."""
        return self.directory / "log"

    @property
    def started(self) -> Path:
        """Is there while its limits are set."""
        return self.directory / ".started"

    @property
    def pid_file(self) -> Path:
        """The daemon writes its pid here."""
        return self.pipe / "nvidia-cuda-mps-control.pid"

    @property
    def ready(self) -> Path:
        """Is there while all daemons of the node run."""
        return self.root / READY

    @property
    def shm(self) -> Path:
        """The shared memory of all daemons and clients."""
        return self.root / SHM
