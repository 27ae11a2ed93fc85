"""Measures GPU memory that no known process accounts for: an upper bound of released memory that may still exist.

A process that exported memory and released it cannot know whether another process still has it. NVML does not tell
either: it counts such memory for one of the importers, or for no process while only a file descriptor keeps it. But the
memory is part of the GPU's total use. So everything that certainly belongs to something else is subtracted from the
total:

- the bytes that processes of the share report as certain. Their charges for memory that may not exist (yet) do not
  count, because released memory could hide behind them;
- the memory that NVML lists for processes of other shares, up to their charges: released memory that they hold is
  theirs;
- the counted overhead of all processes except the asking one, whose own overhead will be measured without the released
  memory.

Everything is read before and after, and the value that makes the result larger counts. The driver's own memory and
uncounted overhead remain in the result as uncertainty.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence

from deviceplugin.arbiter import pages
from deviceplugin.audit.node_audit import ProcessIdentity
from deviceplugin.audit.process_listing import ShareLedgerView
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.hardware.driver import Driver
from deviceplugin.link.node_shares import RunningShare, Shares

logger = logging.getLogger(__name__)


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


def claim_bytes(before: KnownHolding, after: KnownHolding, *, listed_bytes: int, own_share: bool, asks: bool) -> int:
    """Return the bytes that a process certainly used during the whole measurement.

    listed_bytes: its memory according to NVML, read between `before` and `after`. own_share: whether the process
    belongs to the asking share. asks: whether it is the asking process itself.
    """
    if own_share:
        held_bytes = before.certain[0] if before.certain[1] == after.certain[1] else 0
    else:
        held_bytes = min(listed_bytes, before.charged_bytes, after.charged_bytes)
    return held_bytes if asks else held_bytes + min(before.overhead_bytes, after.overhead_bytes)


def unclaimed_bytes(
    used_bytes: int,
    before: Mapping[ProcessIdentity, KnownHolding],
    after: Mapping[ProcessIdentity, KnownHolding],
    *,
    listed: Mapping[int, int | None],
    share: str,
    asker: ProcessIdentity,
) -> int:
    """Return the used bytes that no process accounts for. listed: by pid, from NVML. asker: a process of `share`."""
    for identity, held in before.items():
        if identity in after:
            used_bytes -= claim_bytes(
                held,
                after[identity],
                listed_bytes=listed.get(identity[0]) or 0,
                own_share=held.share == share,
                asks=identity == asker,
            )
    return max(0, used_bytes)


def measure(
    driver: nvml.Nvml, uuid: str, groups: Sequence[ShareLedgerView], *, share: str, asker: ProcessIdentity
) -> int:
    """Measure a GPU's unclaimed memory now. Blocking: for the driver's thread. Raises NvmlError."""
    before = _held(uuid, groups)
    used_before_bytes = driver.used_bytes(uuid)
    listed = {user.pid: user.memory_bytes for user in driver.users(uuid)}
    used_bytes = max(used_before_bytes, driver.used_bytes(uuid))
    return unclaimed_bytes(used_bytes, before, _held(uuid, groups), listed=listed, share=share, asker=asker)


def _held(uuid: str, groups: Sequence[ShareLedgerView]) -> dict[ProcessIdentity, KnownHolding]:
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
        return await driver.ask(measure, driver.nvml, uuid, groups, share=share, asker=asker)
    except nvml_call.NvmlError as error:
        logger.debug("Could not measure a GPU's unclaimed memory", extra={"err": str(error)})
        return None
