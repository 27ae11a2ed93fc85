"""The plugin for Headlamp counts allocations as the contract tells them from backfill reservations."""

from __future__ import annotations

import re

from gpushare import contract
from tests.docs import pages

SOURCE = (pages.ROOT / "docs" / "headlamp" / "src" / "index.tsx").read_text()


def test_backfill_reservations_are_not_counted() -> None:
    (counted,) = re.findall(r"allocations \?\? \[\]\)\.filter\(each => !each\.id\.startsWith\('(.*)'\)\)", SOURCE)
    assert counted == contract.BACKFILL_PREFIX
    assert "allocations?.length" not in SOURCE
