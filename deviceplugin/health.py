"""Which GPUs are not to be trusted with work, and until when. Pure.

Two signs. A GPU that does not answer is lost, until it answers again. A critical XID makes it unhealthy: for those that
only a reset cures, until it was away and came back (or the agent starts anew, as after an administrator's look at it);
for all others, until it has been quiet for a while. XIDs that a program causes by its own fault say nothing about the
GPU (https://docs.nvidia.com/deploy/xid-errors/).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
RESET_XIDS: Final = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140, 143})
QUIET_SECONDS: Final = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why a GPU is not healthy; `until` on the caller's clock, None where only a reset helps."""

    reason: str
    until: float | None


Faults = Mapping[str, Fault]


def after_xid(faults: Faults, *, uuid: str, number: int, now: float) -> Faults:
    """The faults once `number` happened on the GPU `uuid`; a fault that lasts longer stays."""
    known = faults.get(uuid)
    if number in APPLICATION_XIDS or (known is not None and known.until is None):
        return faults
    if number in RESET_XIDS:
        fault = Fault(f"XID {number} happened: the GPU has to be reset", None)
    else:
        fault = Fault(
            f"XID {number} happened: it is unhealthy until {QUIET_SECONDS:.0f} s without another", now + QUIET_SECONDS
        )
    return {**faults, uuid: fault}


def after_look(faults: Faults, *, returned: Iterable[str], now: float) -> Faults:
    """The faults once the GPUs were looked at: those that were lost and have `returned` were reset."""
    cured = frozenset(returned)
    return {
        uuid: fault
        for uuid, fault in faults.items()
        if uuid not in cured and (fault.until is None or fault.until > now)
    }
