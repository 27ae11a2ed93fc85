"""Which GPUs and MIG devices are not to be trusted with work, and until when. Pure.

Two signs. A GPU that does not answer is lost, until it answers again. A critical XID makes it unhealthy (or the MIG
devices that it names): for those that only a reset cures, until it was away and came back, or the driver says that
nothing needs to be recovered any more; for all others, until it has been quiet for a while. That it was away is seen,
or said by the XID itself, and is remembered by the next agent: a GPU may be reset while none runs. No fault ends while
the driver reports a recovery action. Which XIDs are a program's own fault and say nothing about the GPU is decided in
`xid`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.disk import records, whole_file

logger = logging.getLogger(__name__)

# Whose immediate action is RESET_GPU or RESTART_VM (151), or that begin the workflow of NVLink 5 (144 to 150), by
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; and 48 and 74 of older GPUs.
RESET_XIDS: Final = frozenset(
    {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, *range(144, 152), 155, 156, 158}
)
OFF_THE_BUS_XID: Final = 79
QUIET_SECONDS: Final = 300.0
STILL_ANSWERING_SECONDS: Final = 5.0  # after an XID a GPU may still answer for a moment, and go then
FAULTS_NAME: Final = "faults.json"
BOOT_ID: Final = Path("sys/kernel/random/boot_id")


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why a device is not healthy. since, until: on the caller's clock; until is None where only a reset helps.

    number: the XID's; 0 where it is unknown. gpu: the UUID of the GPU whose MIG device it is, "" where it is a GPU.
    away: the GPU was lost since; once it answers, it was reset.
    """

    reason: str
    until: float | None
    since: float = 0.0
    number: int = 0
    gpu: str = ""
    away: bool = False


Faults = Mapping[str, Fault]


def after_xid(faults: Faults, *, uuids: Iterable[str], number: int, now: float, gpu: str = "") -> Faults:
    """The faults once `number` happened on these GPUs, or on MIG devices of `gpu`; a fault that lasts longer stays."""
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
    """The faults once the GPUs were looked at. One that was away and answers again was reset, whoever saw it go.

    answering: the GPUs that do. recovered: those GPUs of which the driver says that nothing is left to be done; it may
    say so before it has noticed, so it is believed only after a while. needing: those of which it says that something
    is; their faults last.
    """
    lasting = {}
    for uuid, fault in faults.items():
        gpu = fault.gpu or uuid
        if gpu not in answering:
            lasting[uuid] = dataclasses.replace(fault, away=True)
        elif gpu in needing or _lasts(fault, now, gpu in recovered):
            lasting[uuid] = fault
    return lasting


def _lasts(fault: Fault, now: float, is_recovered: bool) -> bool:
    if fault.away:
        return now - fault.since < STILL_ANSWERING_SECONDS
    if fault.until is not None:
        return fault.until > now
    return not is_recovered or now - fault.since < QUIET_SECONDS


class FaultLog:
    """The file in `directory`. Its times are seconds since the boot, as those of CLOCK_MONOTONIC."""

    def __init__(self, directory: Path, *, proc: Path = Path("/proc")) -> None:
        self._path = directory / FAULTS_NAME
        self._boot = _text(proc / BOOT_ID)

    def read(self) -> Faults:
        """What the last agent left; nothing if that cannot be read, which is logged."""
        try:
            document = records.load(self._path)
            if document["boot"] != self._boot:
                return {}
            return records.read(dict[str, Fault], document["faults"], newer=True)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning(
                "Starting without the previous agent's GPU faults",
                extra={"set_aside": str(whole_file.set_aside(self._path)), "err": str(error)},
            )
            return {}

    def write(self, faults: Faults) -> None:
        """Keep them. A disk that takes nothing is logged: the GPUs are judged all the same."""
        document = {"boot": self._boot, "faults": {uuid: records.write(fault) for uuid, fault in faults.items()}}
        try:
            whole_file.write(self._path, json.dumps(document))
        except OSError as error:
            logger.warning("Could not write the GPU faults", extra={"err": str(error)})


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
