"""Columns stay aligned with colours, bars and wide characters in their cells."""

from __future__ import annotations

from kubectl_gpushare.output import colour, table_layout
from kubectl_gpushare.output.table import Cell, Column, Table
from kubectl_gpushare.output.terminal import Terminal


def test_colours_take_no_width() -> None:
    table = Table((Column("A"), Column("B")), ((Cell("x", style="bad"), "1"), ("xy", "2")))
    place = Terminal(colours=True)
    lines, _ = table_layout.draw(table, place, headers=False)
    assert lines == [colour.paint("x", "bad", on=True) + "    1", "xy   2"]


def test_long_name_continues_in_the_next_line() -> None:
    table = Table((Column("POD", least=14, wrap=True),), (("default/ten-quarters",), ("x" * 20,)))
    lines, _ = table_layout.draw(table, Terminal(columns=14), headers=False)
    assert lines == ["default/ten-", "quarters", "x" * 14, "x" * 6]
