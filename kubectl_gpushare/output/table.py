"""Table: columns and rows of cells, as a view makes them; `table_layout` decides widths and colours."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

NONE = "<none>"
UNKNOWN = "<unknown>"


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column and what a narrow terminal may do to it."""

    header: str
    wide: bool = False  # shown only when every column is asked for
    least: int = 0  # characters it may be shortened to; 0: never
    middle: bool = False  # shortened in its middle: both ends of a name distinguish it
    wrap: bool = False  # goes on in the next line instead of being shortened
    leave_out: int = 0  # left out on a narrow terminal, highest first; 0: never


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A text with a style of the palette, and perhaps a bar beside it."""

    text: str
    style: str = ""
    bar: float | None = None  # full part, 0 to 1
    bar_style: str = ""


Row = Sequence[str | Cell]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows have a cell for each column. `totals` is one more row, `caption` a sentence above for people."""

    columns: tuple[Column, ...]
    rows: Sequence[Row]
    totals: Row | None = None
    caption: str = ""
    what: str = "resources"  # "No … found."


def sentence(text: str) -> str:
    """`text` on one line, for a last column, where spaces are harmless."""
    return " ".join(text.split()) or NONE


def plain(text: str) -> str:
    """`text` as kubectl shows it in a cell: without spaces, never empty."""
    return sentence(text).replace(" ", "-")
