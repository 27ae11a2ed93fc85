"""Layout: a table without a width to keep to is what a library for tables makes of it."""

from __future__ import annotations

import pytest
import tabulate
from hypothesis import given
from hypothesis import strategies as st

from kubectl_gpushare.output import colour, layout
from kubectl_gpushare.output.table import Cell, Column, Table
from kubectl_gpushare.output.terminal import Terminal

WORDS = st.text("ab-/ 0.5", max_size=8).map(str.strip)
CELLS = st.one_of(WORDS, WORDS.map(lambda text: Cell(text, style="bad")))
BETWEEN = tabulate.DataRow("", " " * layout.PADDING, "")
LOOK = tabulate.TableFormat(None, None, None, None, BETWEEN, BETWEEN, 0, None)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6), headers=st.booleans(), colours=st.booleans()
)
def test_columns_stand_below_each_other(rows: list[tuple[str | Cell, ...]], headers: bool, colours: bool) -> None:
    titles = ("NODE", "GPU", "FREE")
    drawn = [
        [cell if isinstance(cell, str) else colour.paint(cell.text, cell.style, on=colours) for cell in row]
        for row in rows
    ]
    if headers:
        drawn.insert(0, [colour.paint(title, "bold", on=colours) for title in titles])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabulate, "MIN_PADDING", 0)
        patch.setattr(tabulate, "PRESERVE_WHITESPACE", True)
        wanted = tabulate.tabulate(drawn, tablefmt=LOOK, disable_numparse=True).split("\n")
    table = Table(tuple(map(Column, titles)), tuple(rows))
    assert layout.draw(table, Terminal(colours=colours), headers=headers)[0] == [line.rstrip() for line in wanted]


def test_a_colour_takes_no_room() -> None:
    table = Table((Column("A"), Column("B")), ((Cell("x", style="bad"), "1"), ("xy", "2")))
    place = Terminal(colours=True)
    lines, _ = layout.draw(table, place, headers=False)
    assert lines == [colour.paint("x", "bad", on=True) + "    1", "xy   2"]
