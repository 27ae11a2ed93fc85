"""Layout: short tables are joined by a library and long ones by ourselves, and nobody can tell which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_gpushare.output import colour, table_layout
from kubectl_gpushare.output.table import Cell, Column, Table
from kubectl_gpushare.output.terminal import Terminal

WORDS = st.text("ab-/ 0.5", max_size=8).map(str.strip)
CELLS = st.one_of(WORDS, WORDS.map(lambda text: Cell(text, style="bad")))


@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6), headers=st.booleans(), colours=st.booleans()
)
def test_long_and_short_tables_look_the_same(rows: list[tuple[str | Cell, ...]], headers: bool, colours: bool) -> None:
    table = Table(tuple(Column(name) for name in ("NODE", "GPU", "FREE")), tuple(rows))
    place = Terminal(colours=colours)
    short = table_layout.draw(table, place, headers=headers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_layout, "FEW_LINES", 0)
        assert table_layout.draw(table, place, headers=headers) == short


def test_a_colour_takes_no_room() -> None:
    table = Table((Column("A"), Column("B")), ((Cell("x", style="bad"), "1"), ("xy", "2")))
    place = Terminal(colours=True)
    lines, _ = table_layout.draw(table, place, headers=False)
    assert lines == [colour.paint("x", "bad", on=True) + "    1", "xy   2"]


def test_a_name_goes_on_in_the_next_line_after_a_mark_in_it() -> None:
    table = Table((Column("POD", least=14, wrap=True),), (("default/ten-quarters",), ("x" * 20,)))
    lines, _ = table_layout.draw(table, Terminal(columns=14), headers=False)
    assert lines == ["default/ten-", "quarters", "x" * 14, "x" * 6]
