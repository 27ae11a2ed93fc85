"""What a context takes of a GPU, by model and driver: learned from processes, kept on disk for the next agent.

It is the least that the last processes took, so hardly any charges more for its context than it takes; what one takes
beyond that is measured. Keyed by the driver too, because a new one may need more or less.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deviceplugin.disk import records, whole_file
from deviceplugin.state.offer import Offer
from gpushare.gpu import Gpu

logger = logging.getLogger(__name__)

NAME: Final = "contexts.json"
REMEMBERED: Final = 64  # processes: a context that was measured as too small is forgotten after so many others


class ContextCheckpoint:
    """The file `directory/contexts.json`. `until_learned_bytes`: what to go by before anything was measured."""

    def __init__(self, directory: Path, *, until_learned_bytes: int = 0) -> None:
        self._path = directory / NAME
        self._until_learned_bytes = until_learned_bytes
        self._learned = _read(self._path)

    def bytes_of(self, kind: str) -> int:
        """What a context on this kind of GPU is taken to need."""
        return min(self._learned.get(kind, ()), default=self._until_learned_bytes)

    def learn(self, measured: Mapping[str, tuple[int, ...]]) -> None:
        """Contexts of these kinds took so many bytes."""
        if not measured:
            return
        for kind, sizes in measured.items():
            before = self.bytes_of(kind)
            self._learned[kind] = (*self._learned.get(kind, ()), *sizes)[-REMEMBERED:]
            if self.bytes_of(kind) != before:
                logger.info("Learned what a context takes", extra={"kind": kind, "bytes": self.bytes_of(kind)})
        try:
            whole_file.write(self._path, json.dumps(self._learned))
        except OSError as error:
            logger.warning("Could not keep what contexts take", extra={"err": str(error)})


class ContextSizes:
    """The same for the GPUs that there are, by the version of their driver."""

    def __init__(self, checkpoint: ContextCheckpoint, gpus: Offer, *, driver_version: str = "") -> None:
        self._checkpoint = checkpoint
        self._gpus = gpus
        self._driver_version = driver_version
        self.learn = checkpoint.learn

    def kind(self, gpu: Gpu) -> str:
        """The kind of a GPU, by which its contexts are known."""
        return f"{gpu.model}, driver {self._driver_version}"

    def bytes_on(self, uuid: str) -> int:
        """What a context on this GPU is to be charged before it is made."""
        gpu = next((gpu for gpu in self._gpus.gpus if gpu.uuid == uuid), None)
        return self._checkpoint.bytes_of(self.kind(gpu)) if gpu is not None else 0


def _read(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        learned = records.read(dict[str, tuple[int, ...]], records.load(path))
        wrong = [figure for figures in learned.values() for figure in figures if not 0 <= figure < 2**63]
        records.check(not wrong, f"no context takes {wrong} bytes")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        extra = {"set_aside": str(whole_file.set_aside(path)), "err": str(error)}
        logger.warning("Starting without what the last agent knew of contexts", extra=extra)
        return {}
    return learned
