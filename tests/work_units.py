"""Distributes tests to workers: the tests of a file go together, and so do all tests that share the lab.

A lab takes a minute to start, and its tests mostly wait. So one worker has the lab and begins with it, while the others
run everything else, the longest files first, so that all end at about the same time. A file whose tests start
their own labs says so, by `pytest.mark.lab(own=True)`, and goes to any worker.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT: Final = Path(__file__).resolve().parents[1]
LAB: Final = "lab"
_MAX: Final = (LAB, "apiserver", "slow")
_WITH_A_NEW_KUBELET: Final = frozenset({"test_lab_kubelet.py", "test_restarts.py", "test_storm.py"})
_ranks: dict[Path, int] = {}  # of files


class WorkUnits(LoadFileScheduling):
    """A scheduler whose unit of work is a file, or the lab."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def unit(nodeid: str) -> str:
    """Return the unit of work of a test: its file, or LAB."""
    file = nodeid.partition("::")[0]
    return LAB if _shares_the_lab(file) else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by their tests' markers, in the order of `_MAX`; files without a marker are short.

    End-to-end tests come before other tests of the lab, which compare exact amounts, and those that restart its kubelet
    come last: the agent offers more in a kubelet's first minute and a half, and each of them would wait for its end.
    """
    for item in items:
        rank = next((at for at, marker in enumerate(_MAX) if item.get_closest_marker(marker)), len(_MAX))
        _ranks[item.path] = min(rank, _ranks.get(item.path, rank))
    items.sort(key=lambda item: (_ranks[item.path], _turn(item.path)))


def _turn(file: Path) -> int:
    return 2 if file.name in _WITH_A_NEW_KUBELET else int("e2e" not in file.parts)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """End the session's fixtures after a worker's last test that uses the lab, and after the last with an API server.

    They would idle until all tests have run: an API server takes 0.9 % of a core, the lab several times that.
    """
    if nextitem is None or _ranks[item.path] >= min(_ranks[nextitem.path], _MAX.index("slow")):
        return None
    return item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


@functools.cache
def _shares_the_lab(file: str) -> bool:
    return re.search(rf"\bpytest\.mark\.{LAB}\b(?!\()", (ROOT / file).read_text()) is not None
