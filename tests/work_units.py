"""Distributes tests to workers: the tests of a file go together, and so do all tests that need the lab.

A lab takes a minute to start and much of a core while it runs, and its tests mostly wait. So one worker has the lab and
begins with it, while the others run everything else, the longest files first, so that all end at about the same time.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT: Final = Path(__file__).resolve().parents[1]
LAB: Final = "lab"
_MAX: Final = (LAB, "apiserver", "slow")


class WorkUnits(LoadFileScheduling):
    """A scheduler whose unit of work is a file, or the lab."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return LAB if _needs_the_lab(file) else file


def longest_first(items: list[pytest.Item]) -> None:
    """Sort files by their tests' markers, in the order of `_MAX`; files without a marker are short."""
    ranks: dict[Path, int] = {}
    for item in items:
        rank = next((at for at, marker in enumerate(_MAX) if item.get_closest_marker(marker)), len(_MAX))
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


@functools.cache
def _needs_the_lab(file: str) -> bool:
    return f"pytest.mark.{LAB}" in (ROOT / file).read_text()
