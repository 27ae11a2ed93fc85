"""What processes hold on a GPU beyond what they have charged: contexts, modules, the driver's rounding. Pure.

The driver's figure and the ledger's cannot be read in one moment. The ledger is read before the driver and after, and
the higher one counts; of two looks the lower surplus counts. So what is allocated or freed between two reads is not
taken for overhead, and what is there to stay is counted from the second look on.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.audit.node_audit import ProcessIdentity
from deviceplugin.disk import records, whole_file
from deviceplugin.state.offer import Offer
from gpushare.gpu import Gpu

logger = logging.getLogger(__name__)

SCANS_TO_MEASURE: Final = 2
# A context takes a moment to be made; what is learned of one is from the third look at it on.
SCANS_TO_LEARN: Final = 3
Key = tuple[str, ProcessIdentity]  # the UUID of a GPU, and a process on it
CONTEXTS_NAME: Final = "contexts.json"
MAX_REMEMBERED: Final = 64  # processes: a context that was measured as too small is forgotten after so many others


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One process on one GPU: what the driver says it holds, and what it had charged before and after that.

    expected_bytes: what it had been told to charge for a context.
    """

    used_bytes: int
    charged_before_bytes: int
    charged_after_bytes: int
    expected_bytes: int = 0

    @property
    def surplus_bytes(self) -> int:
        """What it holds beyond its charges; negative if it has charged more than it holds."""
        return self.used_bytes - max(self.charged_before_bytes, self.charged_after_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    scans: int
    last: Reading
    overhead_bytes: int


class Overheads:
    """From look to look. `learned`: what a context took, of the processes for which that became known by the last."""

    def __init__(self) -> None:
        self._known: Mapping[Key, _Known] = {}
        self.learned: Mapping[Key, int] = {}

    def update(self, readings: Mapping[Key, Reading], silent: Collection[str] = ()) -> None:
        """Take the readings of one look; GPUs that gave none this time, `silent`, keep what they had."""
        known = {key: overhead for key, overhead in self._known.items() if key[0] in silent}
        learned = {}
        for key, now in readings.items():
            before = self._known.get(key)
            known[key] = _Known(
                scans=before.scans + 1 if before is not None else 1,
                last=now,
                overhead_bytes=max(0, min(before.last.surplus_bytes, now.surplus_bytes)) if before is not None else 0,
            )
            if before is not None and known[key].scans == SCANS_TO_LEARN:
                context_bytes = min(before.last.surplus_bytes, now.surplus_bytes) + now.expected_bytes
                if context_bytes > 0 and before.last.expected_bytes == now.expected_bytes:
                    learned[key] = context_bytes
        self._known, self.learned = known, learned

    def bytes_of(self, key: Key) -> int:
        """What a process holds on a GPU beyond its charges, in bytes."""
        return self._known[key].overhead_bytes if key in self._known else 0


class ContextCheckpoint:
    """The file `directory/json`. `until_learned_bytes`: what to go by before anything was measured."""

    def __init__(self, directory: Path, *, until_learned_bytes: int = 0) -> None:
        self._path = directory / CONTEXTS_NAME
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
            self._learned[kind] = (*self._learned.get(kind, ()), *sizes)[-MAX_REMEMBERED:]
            if self.bytes_of(kind) != before:
                logger.info("Learned the size of a context", extra={"kind": kind, "bytes": self.bytes_of(kind)})
        try:
            whole_file.write(self._path, json.dumps(self._learned))
        except OSError as error:
            logger.warning("Could not write the context sizes", extra={"err": str(error)})


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
        logger.warning("Starting without the previous agent's context sizes", extra=extra)
        return {}
    return learned
