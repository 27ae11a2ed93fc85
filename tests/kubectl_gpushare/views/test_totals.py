"""Totals stand under their header, even after a column is added to the table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest

from kubectl_gpushare.output import layout
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.output.values import Column, Table
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import cell_figures, gpu_table, node_table, pod_table
from tests.kubectl_gpushare import answered, sample

TABLES: dict[str, Callable[[], Table]] = {
    "gpus": lambda: gpu_table.table(gpu_table.build(Snapshot(tuple(sample.nodes()))), with_used=True),
    "nodes": lambda: node_table.table(node_table.build(Snapshot(tuple(sample.nodes()))), with_used=True),
    "pods": lambda: pod_table.table(pod_table.build(sample.snapshot()), now=0.0, with_used=True),
    "rightsize": lambda: answered.rightsized().table(),
}
NEW = Column("NEW")


def totals(table: Table) -> dict[str, str]:
    """Return the words of the last line, by the header above each."""
    lines, _ = layout.draw(table, Terminal(), wide=True)
    starts = [match.start() for match in re.finditer(r"\S+", lines[0])]
    return {lines[0][start:].split()[0]: lines[-1][start:].split("   ")[0].strip() for start in starts}


@pytest.mark.parametrize("made", TABLES.values(), ids=TABLES)
def test_new_column_keeps_the_totals_in_place(made: Callable[[], Table]) -> None:
    table = made()
    before = totals(table)
    assert set(table.totals or ()) <= {column.header for column in table.columns}
    for place in range(1, len(table.columns) + 1):
        columns = (*table.columns[:place], NEW, *table.columns[place:])
        rows = [[*row[:place], "new", *row[place:]] for row in table.rows]
        after = totals(dataclasses.replace(table, columns=columns, rows=rows))
        assert after == {**before, "NEW": ""}


def test_first_shown_column_says_total() -> None:
    table = TABLES["pods"]()
    without = cell_figures.without(table, pod_table.COLUMNS[:1])
    assert totals(without)["NAME"] == totals(table)["NAMESPACE"] == "TOTAL"
