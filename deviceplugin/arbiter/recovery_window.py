"""When records of ledgers were lost last, on disk.

Processes that began before that may go by a ledger of which nothing is left, through no fault of theirs. Whoever began
later cannot, whatever it looks like: it could make itself look so.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Final

from deviceplugin.disk import records, whole_file

logger = logging.getLogger(__name__)

SUFFIX: Final = ".lost"


@dataclasses.dataclass(frozen=True, slots=True)
class _Lost:
    """What the file says."""

    boot_id: str
    ticks: int


def path_of(directory: Path) -> Path:
    """Its file: beside the directory of the records."""
    return directory.with_name(f"{directory.name}{SUFFIX}")


def read(directory: Path, boot_id: str) -> int | None:
    """In the kernel's ticks since it was booted; 0 if nothing was lost since then, None if that cannot be told."""
    try:
        lost = records.read(_Lost, records.load(path_of(directory)), newer=True)
        records.check(lost.ticks >= 0, "it was before the boot")
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return None
    return lost.ticks if lost.boot_id == boot_id else 0


def write(directory: Path, boot_id: str, ticks: int) -> None:
    """Some have been. A disk that takes nothing is logged: then the next agent knows of it no more."""
    try:
        whole_file.write(path_of(directory), json.dumps({"boot_id": boot_id, "ticks": ticks}))
    except OSError as error:
        logger.warning("Could not write down that records were lost", extra={"err": str(error)})
