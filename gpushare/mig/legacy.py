"""MIG UUIDs of drivers before R470: `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from gpushare import errors

_TEXT: Final = re.compile(r"MIG-(GPU-[^/]+)/([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """Which instance of which GPU."""

    parent: str
    gpu_instance: int
    compute_instance: int


def parse(text: str) -> Instance:
    """What the UUID says. Raises GpushareError for a GPU's UUID and for one of today's, which says nothing."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise errors.GpushareError(
            f"{errors.quoted(text)} is no MIG UUID of an old driver: those are MIG-GPU-<uuid>/<GI>/<CI>"
        )
    return Instance(match[1], int(match[2]), int(match[3]))
