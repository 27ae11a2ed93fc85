"""A table and a terminal → lines. On a terminal no line is longer than it: bars go first, then long names are
shortened, then whole columns are left out (and named), so that no cell is ever broken in two.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

from gpushare import printable
from kubectl_gpushare.output import colour
from kubectl_gpushare.output.table import Cell, Column, Row, Table
from kubectl_gpushare.output.terminal import Terminal, broken

PADDING = 3  # kubectl's
NARROW_PADDING = 2
MIN_PADDING = 1  # where nothing may be left out
MIN = 5  # characters that a shortened cell keeps once no more columns may be left out
BARS = (12, 10, 8, 6, 4, 0)  # widths a bar may have, best first

_ESCAPE = r"\x1b\[[0-9;]*m"


@dataclasses.dataclass(frozen=True, slots=True)
class TableFit:
    """How a table fits: the columns shown, their greatest widths, bars, padding, and the headers left out."""

    shown: tuple[int, ...]
    most: tuple[int, ...]  # widest a cell of each shown column may be, without its bar
    bar: int
    padding: int
    left_out: tuple[str, ...] = ()


def draw(
    table: Table, place: Terminal, *, wide: bool = False, headers: bool = True, dashes: bool = False
) -> tuple[list[str], tuple[str, ...]]:
    """Return the lines, and the headers of columns that do not fit. `dashes` underlines headers, as `describe` does."""
    totals = table.totals_row if headers else None
    rows = [*table.rows, *([totals] if totals else [])]
    columns = tuple(index for index, column in enumerate(table.columns) if wide or not column.wide)
    cells = [_printable([row[index] for row in rows]) for index in columns]
    natural = [
        max([len(table.columns[index].header) if headers else 0, *(len(_text(cell)) for cell in column)])
        for index, column in zip(columns, cells, strict=True)
    ]
    with_bar = [place.interactive and any(_has_bar(cell) for cell in column) for column in cells]
    fit = _fit([table.columns[index] for index in columns], natural, with_bar, place.columns)
    ellipsis = "…" if place.unicode else "~"
    decided = [(table.columns[columns[slot]], most) for slot, most in zip(fit.shown, fit.most, strict=True)]
    shown: Sequence[Sequence[str | Cell]] = [cells[slot] for slot in fit.shown]
    if any(natural[slot] > most for slot, most in zip(fit.shown, fit.most, strict=True)):
        broken = [line for row in zip(*shown, strict=True) for line in _broken(row, decided, ellipsis)]
        shown = [*zip(*broken, strict=True)]
    drawn: list[list[str]] = [
        [_drawn(cell, most, fit.bar if with_bar[slot] else 0, place) for cell in column]
        if place.colours or place.interactive
        else [cell if isinstance(cell, str) else cell.text for cell in column]
        for slot, column, most in zip(fit.shown, shown, fit.most, strict=True)
    ]
    if not headers:
        return _join(drawn, fit.padding), fit.left_out
    titles = [shorten(column.header, most, ellipsis=ellipsis) for column, most in decided]
    if dashes:
        drawn = [["-" * len(title), *column] for title, column in zip(titles, drawn, strict=True)]
    if place.colours:
        titles = [colour.paint(title, "bold", on=True) for title in titles]
    titled = [[title, *column] for title, column in zip(titles, drawn, strict=True)]
    return _join(titled, fit.padding), fit.left_out


def width(line: str) -> int:
    """Return the number of visible characters in a line."""
    return len(re.sub(_ESCAPE, "", line)) if "\x1b" in line else len(line)


def shorten(text: str, most: int, *, middle: bool = False, ellipsis: str = "…") -> str:
    """Return `text` in at most `most` characters, with an ellipsis at its end or in its middle."""
    if len(text) <= most:
        return text
    if not middle:
        return text[: most - 1] + ellipsis
    tail = most // 2
    return text[: most - 1 - tail] + ellipsis + text[len(text) - tail :]


def bar(part: float, width: int, *, style: str, place: Terminal) -> str:
    """Return A bar of `width` characters, full to `part` (0 to 1)."""
    part = min(1.0, max(0.0, part))
    if not place.unicode:
        full = round(part * width)
        return colour.paint("=" * full, style, on=place.colours) + "-" * (width - full)
    halves = round(part * width * 2)
    if part > 0:
        halves = max(1, halves)  # a small part still shows
    if part < 1:
        halves = min(halves, width * 2 - 1)
    full, half = divmod(halves, 2)
    head = "━" * full + "╸" * half
    rest = ("━" if place.colours else "─") * (width - full - half)
    return colour.paint(head, style, on=place.colours) + colour.paint(rest, "dim", on=place.colours)


def _fit(columns: Sequence[Column], natural: list[int], with_bar: list[bool], limit: int | None) -> TableFit:
    shown = list(range(len(columns)))
    if limit is None:
        return TableFit(tuple(shown), tuple(natural), 0, PADDING)
    most = list(natural)

    def total(bar_width: int, padding: int) -> int:
        bars = sum(bar_width + 1 for slot in shown if with_bar[slot]) if bar_width else 0
        return sum(most[slot] for slot in shown) + bars + padding * (len(shown) - 1)

    padding = PADDING if total(BARS[0], PADDING) <= limit else NARROW_PADDING
    left_out: list[str] = []
    while True:
        for bar_width in BARS:
            if total(bar_width, padding) <= limit:
                return TableFit(tuple(shown), tuple(most[slot] for slot in shown), bar_width, padding, tuple(left_out))
        _shorten_columns(columns, natural, most, shown, total(0, padding) - limit)
        if total(0, padding) <= limit:
            continue
        optional = [slot for slot in shown if columns[slot].leave_out]
        if not optional:
            most = list(natural)
            _shorten_columns(columns, natural, most, shown, total(0, MIN_PADDING) - limit)
            if left_out:  # tables of `describe` leave out nothing; those that do not fit are drawn as records
                _shorten_columns(columns, natural, most, shown, total(0, MIN_PADDING) - limit, least=MIN)
            return TableFit(tuple(shown), tuple(most[slot] for slot in shown), 0, MIN_PADDING, tuple(left_out))
        gone = max(optional, key=lambda slot: columns[slot].leave_out)
        shown.remove(gone)
        left_out.append(columns[gone].header)
        most = list(natural)


def _shorten_columns(
    columns: Sequence[Column],
    natural: list[int],
    most: list[int],
    shown: list[int],
    excess: int,
    *,
    least: int = 10_000,
) -> None:
    """Take `excess` characters from the columns that allow it, the widest first, down to `least` if necessary."""
    able = [slot for slot in shown if columns[slot].least]
    while excess > 0:
        able = [slot for slot in able if most[slot] > min(columns[slot].least, natural[slot], least)]
        if not able:
            return
        widest = max(able, key=lambda slot: most[slot])
        most[widest] -= 1
        excess -= 1


def _broken(row: Row, decided: Sequence[tuple[Column, int]], ellipsis: str) -> list[Row]:
    """Return the row with cells no wider than decided; as several rows if cells go on in the next line."""
    if all(len(_text(cell)) <= most for cell, (_, most) in zip(row, decided, strict=True)):
        return [row]
    parts = [
        broken(_text(cell), most)
        if column.wrap
        else [shorten(_text(cell), most, middle=column.middle, ellipsis=ellipsis)]
        for cell, (column, most) in zip(row, decided, strict=True)
    ]
    return [
        [
            dataclasses.replace(cell, text=text) if isinstance(cell, Cell) else text
            for cell, text in zip(row, texts, strict=True)
        ]
        for texts in itertools.zip_longest(*parts, fillvalue="")
    ]


def _printable(column: Sequence[str | Cell]) -> Sequence[str | Cell]:
    if "".join(map(_text, column)).isprintable():
        return column
    return [
        dataclasses.replace(cell, text=printable.replaced(cell.text))
        if isinstance(cell, Cell)
        else printable.replaced(cell)
        for cell in column
    ]


def _drawn(cell: str | Cell, most: int, bar_width: int, place: Terminal) -> str:
    if isinstance(cell, str):
        return cell
    text = colour.paint(cell.text, cell.style, on=place.colours)
    if not bar_width or cell.bar is None:
        return text
    return text + " " * (most - len(cell.text) + 1) + bar(cell.bar, bar_width, style=cell.bar_style, place=place)


def _join(columns: Sequence[Sequence[str]], padding: int) -> list[str]:
    """Return lines whose columns stand side by side; colours take no room."""
    if not columns or not columns[0]:
        return []
    import tabulate  # here: no other format needs it

    tabulate.MIN_PADDING = 0  # columns are no narrower than their headers
    tabulate.PRESERVE_WHITESPACE = True
    between = tabulate.DataRow("", " " * padding, "")
    look = tabulate.TableFormat(None, None, None, None, between, between, 0, None)
    rows = tabulate.tabulate([*zip(*columns, strict=True)], tablefmt=look, disable_numparse=True)
    return [line.rstrip() for line in rows.split("\n")]


def _text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _has_bar(cell: str | Cell) -> bool:
    return isinstance(cell, Cell) and cell.bar is not None
