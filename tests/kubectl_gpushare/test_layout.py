"""Columns stay aligned with colours, bars and wide characters in their cells."""

from __future__ import annotations

from kubectl_gpushare.output import layout, terminal
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.output.values import Cell, Column, Table


def test_colours_take_no_width() -> None:
    table = Table((Column("A"), Column("B")), ((Cell("x", style="bad"), "1"), ("xy", "2")))
    place = Terminal(colours=True)
    lines, _ = layout.draw(table, place, headers=False)
    assert lines == [terminal.paint("x", "bad", on=True) + "    1", "xy   2"]


def test_long_name_continues_in_the_next_line() -> None:
    table = Table((Column("POD", least=14, wrap=True),), (("default/ten-quarters",), ("x" * 20,)))
    lines, _ = layout.draw(table, Terminal(columns=14), headers=False)
    assert lines == ["default/ten-", "quarters", "x" * 14, "x" * 6]
