"""Which GPUs and MIG devices are not to be trusted with work, and until when. Pure.

Two signs. A GPU that does not answer is lost, until it answers again. A critical XID makes it unhealthy (or the MIG
devices that it names): for those that only a reset cures, until it was away and came back, or the driver says that
nothing needs to be recovered any more; for all others, until it has been quiet for a while. Which XIDs are a program's
own fault and say nothing about the GPU is decided in `xid`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Final

RESET_XIDS: Final = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140, 143})
QUIET_SECONDS: Final = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why a device is not healthy. since, until: on the caller's clock; until is None where only a reset helps.

    number: the XID's; 0 where it is unknown.
    """

    reason: str
    until: float | None
    since: float = 0.0
    number: int = 0


Faults = Mapping[str, Fault]


def after_xid(faults: Faults, *, uuids: Iterable[str], number: int, now: float) -> Faults:
    """The faults once `number` happened on these GPUs or MIG devices; a fault that lasts longer stays."""
    if number in RESET_XIDS:
        fault = Fault(f"XID {number} happened: the GPU has to be reset", None, now, number)
    else:
        words = f"XID {number} happened: it is unhealthy until {QUIET_SECONDS:.0f} s without another"
        fault = Fault(words, now + QUIET_SECONDS, now, number)
    lasting = {uuid for uuid, known in faults.items() if known.until is None}
    return {**faults, **{uuid: fault for uuid in uuids if uuid not in lasting}}


def after_look(faults: Faults, *, returned: Iterable[str], now: float, recovered: Collection[str] = ()) -> Faults:
    """The faults once the GPUs were looked at.

    returned: those that were lost and answer again, so they were reset. recovered: those of which the driver says that
    nothing is left to be done; it may say so before it has noticed, so it is believed only after a while.
    """
    cured = frozenset(returned)
    return {uuid: fault for uuid, fault in faults.items() if uuid not in cured and _lasts(uuid, fault, now, recovered)}


def _lasts(uuid: str, fault: Fault, now: float, recovered: Collection[str]) -> bool:
    if fault.until is not None:
        return fault.until > now
    return uuid not in recovered or now - fault.since < QUIET_SECONDS
