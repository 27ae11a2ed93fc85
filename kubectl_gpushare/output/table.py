"""Table: columns and rows of cells, as a view makes them; `table_layout` decides widths and colours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

NONE = "<none>"
UNKNOWN = "<unknown>"


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column and what a narrow terminal may do to it."""

    header: str
    wide: bool = False  # shown only when every column is asked for
    least: int = 0  # characters it may be shortened to; 0: never
    middle: bool = False  # shortened in its middle: both ends of a name distinguish it
    wrap: bool = False  # continues in the next line instead of being shortened
    leave_out: int = 0  # left out on a narrow terminal, highest first; 0: never


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """Text with a style of the palette, and optionally a bar next to it."""

    text: str
    style: str = ""
    bar: float | None = None  # full part, 0 to 1
    bar_style: str = ""


Row = Sequence[str | Cell]
_TOTAL = Cell("TOTAL", "bold")


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows with a cell for each column; `caption` is a sentence above them for people.

    totals: cells of one more row, by header; other columns stay empty there. None: no such row.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Row]
    totals: Mapping[str, str | Cell] | None = None
    caption: str = ""
    what: str = "resources"  # "No … found."

    @property
    def totals_row(self) -> Row | None:
        """The totals with a cell for each column, the word TOTAL in the first."""
        if self.totals is None:
            return None
        return (_TOTAL, *(self.totals.get(column.header, "") for column in self.columns[1:]))


def sentence(text: str) -> str:
    """Return `text` on one line, for a last column, where spaces are harmless."""
    return " ".join(text.split()) or NONE


def plain(text: str) -> str:
    """Return `text` as kubectl shows it in a cell: without spaces, never empty."""
    return sentence(text).replace(" ", "-")
