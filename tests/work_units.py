"""Which tests go to one worker together: those of a file, and all that need the lab.

A lab takes a minute to start and much of a core while it runs, and what happens in it is mostly waiting. So one worker
has it, and begins with it, while the others do everything else.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT: Final = Path(__file__).resolve().parents[1]
LAB: Final = "lab"


class WorkUnits(LoadFileScheduling):
    """A unit of work is a file, or the lab."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return LAB if _needs_the_lab(file) else file


def longest_first(items: list[pytest.Item]) -> None:
    """Have those that need the lab begin: together they take longer than a worker's part of the others."""
    items.sort(key=lambda item: item.get_closest_marker(LAB) is None)


@functools.cache
def _needs_the_lab(file: str) -> bool:
    return f"pytest.mark.{LAB}" in (ROOT / file).read_text()
