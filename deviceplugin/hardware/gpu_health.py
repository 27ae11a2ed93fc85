"""Decides which GPUs and MIG devices are unhealthy and until when, and keeps the faults on disk.

A critical XID makes a GPU unhealthy, or the MIG devices that it names. If only a reset cures it, the fault lasts until
the GPU disappeared and came back, or until the driver reports that no recovery is necessary. Other faults last until
the GPU has been quiet for a while. No fault ends while the driver reports a recovery action. A GPU may be reset while
no agent runs, so the file records that it disappeared. A reboot resets all GPUs: the file is valid for one boot.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.host import records

logger = logging.getLogger(__name__)

# XIDs with the immediate action RESET_GPU or RESTART_VM (151), or that start NVLink 5's workflow (144 to 150), from
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; and 48 and 74 of older GPUs.
RESET_XIDS: Final = frozenset(
    {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, *range(144, 152), 155, 156, 158}
)
OFF_THE_BUS_XID: Final = 79
QUIET_SECONDS: Final = 300.0
STILL_ANSWERING_SECONDS: Final = 5.0  # a GPU may still answer for a moment after the XID and then disappear
FAULTS_NAME: Final = "faults.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why a device is unhealthy. since, until: seconds on the caller's clock; until: None if only a reset helps.

    number: of the XID; 0 if unknown. gpu: the UUID of the GPU if the device is a MIG device, else "". away: the GPU has
    disappeared since; once it answers again, it was reset.
    """

    reason: str
    until: float | None
    since: float = 0.0
    number: int = 0
    gpu: str = ""
    away: bool = False


Faults = Mapping[str, Fault]


def after_xid(faults: Faults, *, uuids: Iterable[str], number: int, now: float, gpu: str = "") -> Faults:
    """Return the faults after XID `number` on these GPUs or on MIG devices of `gpu`. A longer fault stays."""
    if number in RESET_XIDS:
        is_away = number == OFF_THE_BUS_XID
        fault = Fault(f"XID {number} happened: the GPU has to be reset", None, now, number, gpu, is_away)
    else:
        words = f"XID {number} happened: it is unhealthy until {QUIET_SECONDS:.0f} s pass without another"
        fault = Fault(words, now + QUIET_SECONDS, now, number, gpu)
    lasting = {uuid for uuid, known in faults.items() if known.until is None}
    return {**faults, **{uuid: fault for uuid in uuids if uuid not in lasting}}


def after_poll(
    faults: Faults,
    *,
    answering: Collection[str],
    now: float,
    recovered: Collection[str] = (),
    needing: Collection[str] = (),
) -> Faults:
    """Return the faults after the GPUs were read. A GPU that disappeared and answers again was reset.

    answering: GPUs that answer. recovered: GPUs for which the driver reports that no recovery is necessary. The driver
    may say so before it has noticed the fault, so this counts only after a while. needing: GPUs with a recovery action;
    their faults last.
    """
    lasting = {}
    for uuid, fault in faults.items():
        gpu, passed_seconds = fault.gpu or uuid, now - fault.since
        if gpu not in answering:
            lasting[uuid] = dataclasses.replace(fault, away=True)
            continue
        if fault.away:
            lasts = passed_seconds < STILL_ANSWERING_SECONDS
        elif fault.until is not None:
            lasts = fault.until > now
        else:
            lasts = gpu not in recovered or passed_seconds < QUIET_SECONDS
        if lasts or gpu in needing:
            lasting[uuid] = fault
    return lasting


class FaultLog:
    """The fault file in `directory`. Its times are seconds since boot, as in CLOCK_MONOTONIC."""

    def __init__(self, directory: Path, *, proc: Path = Path("/proc")) -> None:
        self._path = directory / FAULTS_NAME
        try:
            self._boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            self._boot = ""

    def read(self) -> Faults:
        """Read the faults that the previous agent wrote. If the file is unreadable, log that and return none."""
        try:
            document = records.load(self._path)
            if document["boot"] != self._boot:
                return {}
            return records.read(dict[str, Fault], document["faults"], newer=True)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            extra = {"set_aside": str(records.set_aside(self._path)), "err": str(error)}
            logger.warning("Starting without the previous agent's GPU faults", extra=extra)
            return {}

    def write(self, faults: Faults) -> None:
        """Write the faults. A write error is only logged: health checks go on."""
        document = {"boot": self._boot, "faults": {uuid: records.to_json(fault) for uuid, fault in faults.items()}}
        try:
            records.write_file(self._path, json.dumps(document))
        except OSError as error:
            logger.warning("Could not write the GPU faults", extra={"err": str(error)})
