"""What a GPU has in use that nobody is known to hold: an upper bound of what has been let go and may not be gone.

A process that shared memory and let it go cannot know whether others have it still, and NVML does not say either: it
counts such memory for one of those who imported it, or, while a descriptor alone keeps it, for no process at all. But
all of it is in what the GPU has in use altogether. From that is taken away what is known to be something else:

- what processes of the share say is there for certain. No charge of theirs counts that may be for memory which is not
  there yet, or not for long: it could pass for what was let go, and come to be there beside it;
- what processes of other shares hold by NVML, as far as it is charged to them: if it was let go here, it is theirs now;
- what is counted of processes, beyond their charges, in their share's overhead. Not of the one that asks: with what was
  let go it will be measured as less.

Everything is read before and after, and of what changed meanwhile the side counts that makes the result larger. What
the driver has for itself, and processes have beyond what is counted, stays in the result: so much stays in doubt.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence

from deviceplugin.arbiter.ledgers import pages
from deviceplugin.audit.process_listing import ShareLedgerView
from deviceplugin.audit.seen import Who
from deviceplugin.hardware import nvml, nvml_call
from deviceplugin.hardware.driver import Driver
from deviceplugin.link.running_shares import RunningShare, Shares

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class KnownHolding:
    """What is known of a process on a GPU, before or after the driver was asked.

    share: its key; certain: its bytes for certain, and how often they were about to be less; overhead_bytes: what is
    counted of it beyond its charges.
    """

    share: str
    charged_bytes: int
    certain: tuple[int, int]
    overhead_bytes: int


def claim_bytes(before: KnownHolding, after: KnownHolding, *, listed_bytes: int, own_share: bool, asks: bool) -> int:
    """What a process held all the time between two readings; listed_bytes: by NVML, in between."""
    if own_share:
        held_bytes = before.certain[0] if before.certain[1] == after.certain[1] else 0
    else:
        held_bytes = min(listed_bytes, before.charged_bytes, after.charged_bytes)
    return held_bytes if asks else held_bytes + min(before.overhead_bytes, after.overhead_bytes)


def unclaimed_bytes(
    used_bytes: int,
    before: Mapping[Who, KnownHolding],
    after: Mapping[Who, KnownHolding],
    *,
    listed: Mapping[int, int | None],
    share: str,
    asker: Who,
) -> int:
    """What nobody is known to hold of what is in use. `listed`: by pid, what NVML says; asker: a process of `share`."""
    for who, held in before.items():
        if who in after:
            used_bytes -= claim_bytes(
                held,
                after[who],
                listed_bytes=listed.get(who[0]) or 0,
                own_share=held.share == share,
                asks=who == asker,
            )
    return max(0, used_bytes)


def look(driver: nvml.Nvml, uuid: str, groups: Sequence[ShareLedgerView], *, share: str, asker: Who) -> int:
    """What of a GPU nobody is known to hold, now. Blocking: for the driver's thread. Raises NvmlError."""
    before = _held(uuid, groups)
    used_before_bytes = driver.used_bytes(uuid)
    listed = {user.pid: user.memory_bytes for user in driver.users(uuid)}
    used_bytes = max(used_before_bytes, driver.used_bytes(uuid))
    return unclaimed_bytes(used_bytes, before, _held(uuid, groups), listed=listed, share=share, asker=asker)


def _held(uuid: str, groups: Sequence[ShareLedgerView]) -> dict[Who, KnownHolding]:
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
                who = (member.pid, member.start_ticks)
                holdings[who] = KnownHolding(group.tenant.key, charged_bytes, certain, overhead_bytes)
    return holdings


async def ask(driver: Driver, shares: Shares, chosen: RunningShare, asker: Who, gpu: int) -> int | None:
    """What of a GPU of a share, by its place there, nobody is known to hold beside this process of it, from now on.

    None where the driver does not tell.
    """
    share, uuid, groups = chosen.tenant.key, chosen.tenant.grants[gpu].uuid, shares.all()
    try:
        return await driver.ask(look, driver.nvml, uuid, groups, share=share, asker=asker)
    except nvml_call.NvmlError as error:
        logger.debug("Could not look who holds a GPU's memory", extra={"err": str(error)})
        return None
