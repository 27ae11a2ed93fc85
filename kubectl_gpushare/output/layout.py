"""A table or a page, and a terminal → lines.

On a terminal no line is longer than it: bars go first, then long names are shortened, then whole columns are left out
(and named), so that no cell is ever broken in two. Pages look as those of `kubectl describe`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

from gpushare import printable
from kubectl_gpushare.output import terminal
from kubectl_gpushare.output.terminal import Terminal, broken
from kubectl_gpushare.output.values import Cell, Column, Commands, Field, Page, Picture, Row, Section, Table, letter

_PADDING = 3  # kubectl's
_NARROW_PADDING = 2
_MIN_PADDING = 1  # where nothing may be left out
_MIN = 5  # characters that a shortened cell keeps once no more columns may be left out
_BARS = (12, 10, 8, 6, 4, 0)  # widths a bar may have, best first

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
    with_bar = [
        place.interactive and any(isinstance(cell, Cell) and cell.bar is not None for cell in column)
        for column in cells
    ]
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
        titles = [terminal.paint(title, "bold", on=True) for title in titles]
    titled = [[title, *column] for title, column in zip(titles, drawn, strict=True)]
    return _join(titled, fit.padding), fit.left_out


def width(line: str) -> int:
    return len(re.sub(_ESCAPE, "", line)) if "\x1b" in line else len(line)


def shorten(text: str, most: int, *, middle: bool = False, ellipsis: str = "…") -> str:
    if len(text) <= most:
        return text
    if not middle:
        return text[: most - 1] + ellipsis
    tail = most // 2
    return text[: most - 1 - tail] + ellipsis + text[len(text) - tail :]


def bar(part: float, width: int, *, style: str, place: Terminal) -> str:
    part = min(1.0, max(0.0, part))
    if not place.unicode:
        full = round(part * width)
        return terminal.paint("=" * full, style, on=place.colours) + "-" * (width - full)
    halves = round(part * width * 2)
    if part > 0:
        halves = max(1, halves)  # a small part still shows
    if part < 1:
        halves = min(halves, width * 2 - 1)
    full, half = divmod(halves, 2)
    head = "━" * full + "╸" * half
    rest = ("━" if place.colours else "─") * (width - full - half)
    return terminal.paint(head, style, on=place.colours) + terminal.paint(rest, "dim", on=place.colours)


def _fit(columns: Sequence[Column], natural: list[int], with_bar: list[bool], limit: int | None) -> TableFit:
    shown = list(range(len(columns)))
    if limit is None:
        return TableFit(tuple(shown), tuple(natural), 0, _PADDING)
    most = list(natural)

    def total(bar_width: int, padding: int) -> int:
        bars = sum(bar_width + 1 for slot in shown if with_bar[slot]) if bar_width else 0
        return sum(most[slot] for slot in shown) + bars + padding * (len(shown) - 1)

    padding = _PADDING if total(_BARS[0], _PADDING) <= limit else _NARROW_PADDING
    left_out: list[str] = []
    while True:
        for bar_width in _BARS:
            if total(bar_width, padding) <= limit:
                return TableFit(tuple(shown), tuple(most[slot] for slot in shown), bar_width, padding, tuple(left_out))
        _shorten_columns(columns, natural, most, shown, total(0, padding) - limit)
        if total(0, padding) <= limit:
            continue
        optional = [slot for slot in shown if columns[slot].leave_out]
        if not optional:
            most = list(natural)
            _shorten_columns(columns, natural, most, shown, total(0, _MIN_PADDING) - limit)
            if left_out:  # tables of `describe` leave out nothing; those that do not fit are drawn as records
                _shorten_columns(columns, natural, most, shown, total(0, _MIN_PADDING) - limit, least=_MIN)
            return TableFit(tuple(shown), tuple(most[slot] for slot in shown), 0, _MIN_PADDING, tuple(left_out))
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
    able = [slot for slot in shown if columns[slot].least]
    while excess > 0:
        able = [slot for slot in able if most[slot] > min(columns[slot].least, natural[slot], least)]
        if not able:
            return
        widest = max(able, key=lambda slot: most[slot])
        most[widest] -= 1
        excess -= 1


def _broken(row: Row, decided: Sequence[tuple[Column, int]], ellipsis: str) -> list[Row]:
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
    text = terminal.paint(cell.text, cell.style, on=place.colours)
    if not bar_width or cell.bar is None:
        return text
    return text + " " * (most - len(cell.text) + 1) + bar(cell.bar, bar_width, style=cell.bar_style, place=place)


def _join(columns: Sequence[Sequence[str]], padding: int) -> list[str]:
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


_PLAIN_WIDTH = 80
_WIDEST_PICTURE = 50
_NARROWEST_PICTURE = 10
_HANGING = "     "  # indents the lines of a section's sentence after the first


def page_lines(content: Page, place: Terminal) -> list[str]:
    fields = [entry for entry in content if isinstance(entry, Field)]
    indent = max((len(entry.key) for entry in fields), default=0) + 3
    drawn: list[str] = []
    for entry in content:
        if isinstance(entry, Field):
            drawn += _field(entry, indent, place)
        else:
            drawn += _section(entry, place)
    return drawn


def _field(entry: Field, indent: int, place: Terminal) -> Iterator[str]:
    wrapped = [line for value in entry.values for line in terminal.wrapped(value, place, indent=indent)]
    for number, text in enumerate(wrapped):
        key = f"{entry.key}:" if number == 0 else ""
        painted = terminal.paint(text, entry.style, on=place.colours)
        yield terminal.paint(key, "bold", on=place.colours) + " " * (indent - len(key)) + painted


def _section(entry: Section, place: Terminal) -> Iterator[str]:
    for title in terminal.wrapped(f"{entry.title}:", place):
        yield terminal.paint(title, entry.style or "bold", on=place.colours)
    pictures = [block for block in entry.blocks if isinstance(block, Picture)]
    label_width = max((len(picture.label) for picture in pictures), default=0)
    for block in entry.blocks:
        if isinstance(block, str):
            for number, text in enumerate(terminal.wrapped(block, place, indent=len(_HANGING))):
                yield (_HANGING if number else "  ") + terminal.paint(text, entry.style, on=place.colours)
        elif isinstance(block, Table):
            yield from _page_table(block, place)
        elif isinstance(block, Commands):
            for text in block.lines:
                yield _HANGING + terminal.paint(printable.replaced(text), "bold", on=place.colours)
        else:
            longest = max(len(picture.caption) for picture in pictures)
            drawn = picture(block, _room(label_width + longest, place), place)
            yield f"    {block.label:<{label_width}}  {drawn}"


def _page_table(block: Table, place: Terminal) -> Iterator[str]:
    narrower = Terminal(
        columns=place.columns - 2 if place.columns else None, colours=place.colours, unicode=place.unicode
    )
    drawn, _ = draw(block, narrower, dashes=True)
    if narrower.columns and max(map(width, drawn), default=0) > narrower.columns:
        drawn = list(_records(block, narrower))
    yield from (f"  {line}".rstrip() for line in drawn)


def _records(block: Table, place: Terminal) -> Iterator[str]:
    """Yield a table that is too wide for its place: a line for each cell, under the name of its column."""
    indent = max(len(column.header) for column in block.columns) + 3
    for number, row in enumerate(block.rows):
        if number:
            yield ""
        for column, cell in zip(block.columns, row, strict=True):
            text, style = (cell, "") if isinstance(cell, str) else (cell.text, cell.style)
            title = f"{column.header}:" if column.header else ""
            for line in terminal.wrapped(text, place, indent=indent):
                painted = terminal.paint(line, style, on=place.colours)
                yield f"{title:<{indent}}{painted}" if column.header else painted
                title = ""


def picture(block: Picture, width: int, place: Terminal) -> str:
    whole = max(block.total, sum(amount for _, amount in block.parts)) or 1
    drawn, held, end = [], 0, 0
    for position, amount in block.parts:
        held += amount
        start, end = end, round(held / whole * width)
        if amount and end == start < width:
            end += 1  # a small amount still shows
        name, part = letter(position), end - start
        centred = f"{name:^{part}}" if part else ""
        drawn.append(terminal.tenant(centred, position, on=True) if place.colours else name * part)
    free = ("·" if place.unicode else ".") * (width - end)
    caption = terminal.paint(block.caption, "bad" if block.over else "", on=place.colours)
    return f"[{''.join(drawn)}{terminal.paint(free, 'dim', on=place.colours)}]  {caption}"


def _room(used: int, place: Terminal) -> int:
    free = (place.columns or _PLAIN_WIDTH) - used - len("      []  ")
    return max(_NARROWEST_PICTURE, min(_WIDEST_PICTURE, free))
