"""GPU memory that processes use beyond their charges, context sizes, and memory that no known process accounts for.

The figures of driver and ledger cannot be read at the same moment. The ledger is read before and after the driver, and
the higher charge counts; of two scans the lower surplus counts. So memory that is allocated or freed between two reads
does not count as overhead, and lasting overhead counts from the second scan on.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.arbiter import pages
from deviceplugin.audit.node_audit import ProcessIdentity
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.hardware.nvml import Driver
from deviceplugin.host import records
from deviceplugin.link.node_shares import RunningShare, Shares
from deviceplugin.state.node_state import ObservableGpus
from gpushare.gpunode import Gpu

logger = logging.getLogger(__name__)

SCANS_TO_MEASURE: Final = 2
# Creating a context takes a moment, so its size is learned at the third scan.
SCANS_TO_LEARN: Final = 3
Key = tuple[str, ProcessIdentity]  # the UUID of a GPU, and a process on it
CONTEXTS_NAME: Final = "contexts.json"
MAX_REMEMBERED: Final = 64  # processes per kind; a size that was measured too small is forgotten after this many others


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The memory of a process on a GPU by the driver, and its charges read before and after that.

    expected_bytes: the charge for a context that it was given.
    """

    used_bytes: int
    charged_before_bytes: int
    charged_after_bytes: int
    expected_bytes: int = 0

    @property
    def surplus_bytes(self) -> int:
        """The bytes in use beyond the charges; negative if more is charged than used."""
        return self.used_bytes - max(self.charged_before_bytes, self.charged_after_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    scans: int
    last: Reading
    overhead_bytes: int


class Overheads:
    """Tracks the overhead of each process. learned: context sizes that the last update determined."""

    def __init__(self) -> None:
        self._known: Mapping[Key, _Known] = {}
        self.learned: Mapping[Key, int] = {}

    def update(self, readings: Mapping[Key, Reading], silent: Collection[str] = ()) -> None:
        """Add the readings of one scan. Processes on `silent` GPUs, which did not answer, keep their overhead."""
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
        return self._known[key].overhead_bytes if key in self._known else 0


class ContextCheckpoint:
    """The sizes of contexts, kept in `directory/contexts.json` for the next agent.

    A size is the minimum of the last processes, so that few are charged too much for a context; the rest is measured as
    overhead. until_learned_bytes: the size to assume before anything was measured.
    """

    def __init__(self, directory: Path, *, until_learned_bytes: int = 0) -> None:
        self._path = directory / CONTEXTS_NAME
        self._until_learned_bytes = until_learned_bytes
        self._learned: dict[str, tuple[int, ...]] = {}
        try:
            learned = records.read(dict[str, tuple[int, ...]], records.load(self._path))
            wrong = [figure for figures in learned.values() for figure in figures if not 0 <= figure < 2**63]
            records.check(not wrong, f"invalid context size: {wrong} bytes")
            self._learned = learned
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            extra = {"set_aside": str(records.set_aside(self._path)), "err": str(error)}
            logger.warning("Starting without the previous agent's context sizes", extra=extra)

    def bytes_of(self, kind: str) -> int:
        return min(self._learned.get(kind, ()), default=self._until_learned_bytes)

    def learn(self, measured: Mapping[str, tuple[int, ...]]) -> None:
        if not measured:
            return
        for kind, sizes in measured.items():
            before = self.bytes_of(kind)
            self._learned[kind] = (*self._learned.get(kind, ()), *sizes)[-MAX_REMEMBERED:]
            if self.bytes_of(kind) != before:
                logger.info("Learned the size of a context", extra={"kind": kind, "bytes": self.bytes_of(kind)})
        try:
            records.write_file(self._path, json.dumps(self._learned))
        except OSError as error:
            logger.warning("Could not write the context sizes", extra={"err": str(error)})


class ContextSizes:
    """The context sizes of the node's GPUs, by model and driver version."""

    def __init__(self, checkpoint: ContextCheckpoint, gpus: ObservableGpus, *, driver_version: str = "") -> None:
        self._checkpoint = checkpoint
        self._gpus = gpus
        self._driver_version = driver_version
        self.learn = checkpoint.learn

    def kind(self, gpu: Gpu) -> str:
        return f"{gpu.model}, driver {self._driver_version}"

    def bytes_on(self, uuid: str) -> int:
        """Return the bytes to charge for a CUDA context on this GPU before it is created."""
        gpu = next((gpu for gpu in self._gpus.gpus if gpu.uuid == uuid), None)
        return self._checkpoint.bytes_of(self.kind(gpu)) if gpu is not None else 0


@dataclasses.dataclass(frozen=True, slots=True)
class KnownHolding:
    """The known memory of a process on a GPU, before or after the driver was read.

    share: its key. certain: its certain bytes, and how often they were about to shrink. overhead_bytes: its counted
    overhead.
    """

    share: str
    charged_bytes: int
    certain: tuple[int, int]
    overhead_bytes: int


def unclaimed_bytes(
    used_bytes: int,
    before: Mapping[ProcessIdentity, KnownHolding],
    after: Mapping[ProcessIdentity, KnownHolding],
    *,
    listed: Mapping[int, int | None],
    share: str,
    asker: ProcessIdentity,
) -> int:
    """Return the used bytes that no process accounts for: at least the released memory that still exists.

    A process of `share`, the `asker`, exported memory, released it, and cannot know whether another process still has
    it. NVML counts such memory for one of the importers, or for no process while only a file descriptor keeps it. So
    everything that certainly belongs to something else is subtracted. The driver's own memory and uncounted overhead
    remain as uncertainty.

    before, after: read around the driver; the value that makes the result larger counts. listed: by pid, from NVML.
    """
    for identity in before.keys() & after.keys():
        first, last = before[identity], after[identity]
        if first.share == share:
            # Charges for memory that may not exist (yet) do not count: released memory could hide behind them.
            used_bytes -= first.certain[0] if first.certain[1] == last.certain[1] else 0
        else:
            # Released memory that a process of another share holds is charged to it.
            used_bytes -= min(listed.get(identity[0]) or 0, first.charged_bytes, last.charged_bytes)
        if identity != asker:  # its own overhead will be measured without the released memory
            used_bytes -= min(first.overhead_bytes, last.overhead_bytes)
    return max(0, used_bytes)


def measure_unclaimed(
    driver: nvml.Nvml, uuid: str, groups: Sequence[RunningShare], *, share: str, asker: ProcessIdentity
) -> int:
    """Measure a GPU's unclaimed memory now. Blocking: for the driver's thread. Raises NvmlError."""
    before = _holdings(uuid, groups)
    used_before_bytes = driver.used_bytes(uuid)
    listed = {user.pid: user.memory_bytes for user in driver.users(uuid)}
    used_bytes = max(used_before_bytes, driver.used_bytes(uuid))
    return unclaimed_bytes(used_bytes, before, _holdings(uuid, groups), listed=listed, share=share, asker=asker)


def _holdings(uuid: str, groups: Sequence[RunningShare]) -> dict[ProcessIdentity, KnownHolding]:
    holdings = {}
    for group in groups:
        for gpu, grant in enumerate(group.tenant.grants):
            if grant.uuid != uuid:
                continue
            for slot, member in list(group.members.items()):
                try:
                    certain = group.certain(slot, gpu)
                    charged_bytes = group.ledger.slot_bytes(slot)[gpu]
                except pages.PagesError:
                    continue
                overhead_bytes = group.overhead_bytes(slot, gpu)
                identity = (member.pid, member.start_ticks)
                holdings[identity] = KnownHolding(group.tenant.key, charged_bytes, certain, overhead_bytes)
    return holdings


async def unclaimed_on_gpu(
    driver: Driver, shares: Shares, chosen: RunningShare, asker: ProcessIdentity, gpu: int
) -> int | None:
    """Measure the unclaimed memory on a share's GPU, given by position, for its process `asker`; None if unknown."""
    share, uuid, groups = chosen.tenant.key, chosen.tenant.grants[gpu].uuid, shares.all()
    try:
        return await driver.ask(measure_unclaimed, driver.nvml, uuid, groups, share=share, asker=asker)
    except nvml_call.NvmlError as error:
        logger.debug("Could not measure a GPU's unclaimed memory", extra={"err": str(error)})
        return None
