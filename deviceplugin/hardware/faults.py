"""The faults of this node's GPUs on disk, for the next agent: a GPU is no better because its agent was restarted.

They are of this boot of the machine: the next one resets the GPUs.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from deviceplugin.disk import records, whole_file
from deviceplugin.hardware import gpu_health

logger = logging.getLogger(__name__)

NAME: Final = "faults.json"
BOOT_ID: Final = Path("sys/kernel/random/boot_id")


class Notebook:
    """The file in `directory`. Its times are seconds since the boot, as those of CLOCK_MONOTONIC."""

    def __init__(self, directory: Path, *, proc: Path = Path("/proc")) -> None:
        self._path = directory / NAME
        self._boot = _text(proc / BOOT_ID)

    def read(self) -> gpu_health.Faults:
        """What the last agent left; nothing if that cannot be read, which is logged."""
        try:
            document = records.load(self._path)
            if document["boot"] != self._boot:
                return {}
            return records.read(dict[str, gpu_health.Fault], document["faults"], newer=True)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning(
                "Starting without the faults that the last agent knew",
                extra={"set_aside": str(whole_file.set_aside(self._path)), "err": str(error)},
            )
            return {}

    def write(self, faults: gpu_health.Faults) -> None:
        """Keep them. A disk that takes nothing is logged: the GPUs are judged all the same."""
        document = {"boot": self._boot, "faults": {uuid: records.write(fault) for uuid, fault in faults.items()}}
        try:
            whole_file.write(self._path, json.dumps(document))
        except OSError as error:
            logger.warning("Could not keep the faults of the GPUs", extra={"err": str(error)})


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
