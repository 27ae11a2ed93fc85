"""A page → lines, as `kubectl describe` lays them out; pictures in letters, and in colours if there are any."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from gpushare import printable
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import colour, documents, page, printing, table_layout, terminal
from kubectl_gpushare.output.table import Table
from kubectl_gpushare.output.terminal import Terminal

_PLAIN_WIDTH = 80
_WIDEST_PICTURE = 50
_NARROWEST_PICTURE = 10
_HANGING = "     "  # indents the lines of a section's sentence after the first


def show(
    kind: str, page_of: Callable[[], page.Page], document_of: Callable[[], documents.Document], options: Options
) -> None:
    """Print one object as a page, or with -o as a document of this kind."""
    if options.output:
        printing.write_document(documents.single(kind, document_of()), options)
        return
    place = terminal.detect(sys.stdout, color=options.color)
    printing.write_lines(lines(page_of(), place), sys.stdout)


def lines(content: page.Page, place: Terminal) -> list[str]:
    """Return the lines of a page. On a terminal long sentences are wrapped; in a pipe a value stays one line."""
    fields = [entry for entry in content if isinstance(entry, page.Field)]
    indent = max((len(entry.key) for entry in fields), default=0) + 3
    drawn: list[str] = []
    for entry in content:
        if isinstance(entry, page.Field):
            drawn += _field(entry, indent, place)
        else:
            drawn += _section(entry, place)
    return drawn


def _field(entry: page.Field, indent: int, place: Terminal) -> Iterator[str]:
    wrapped = [line for value in entry.values for line in terminal.wrapped(value, place, indent=indent)]
    for number, text in enumerate(wrapped):
        key = f"{entry.key}:" if number == 0 else ""
        painted = colour.paint(text, entry.style, on=place.colours)
        yield colour.paint(key, "bold", on=place.colours) + " " * (indent - len(key)) + painted


def _section(entry: page.Section, place: Terminal) -> Iterator[str]:
    for title in terminal.wrapped(f"{entry.title}:", place):
        yield colour.paint(title, entry.style or "bold", on=place.colours)
    pictures = [block for block in entry.blocks if isinstance(block, page.Picture)]
    label_width = max((len(picture.label) for picture in pictures), default=0)
    for block in entry.blocks:
        if isinstance(block, str):
            for number, text in enumerate(terminal.wrapped(block, place, indent=len(_HANGING))):
                yield (_HANGING if number else "  ") + colour.paint(text, entry.style, on=place.colours)
        elif isinstance(block, Table):
            yield from _table(block, place)
        elif isinstance(block, page.Commands):
            for text in block.lines:
                yield _HANGING + colour.paint(printable.replaced(text), "bold", on=place.colours)
        else:
            longest = max(len(picture.caption) for picture in pictures)
            drawn = picture(block, _room(label_width + longest, place), place)
            yield f"    {block.label:<{label_width}}  {drawn}"


def _table(block: Table, place: Terminal) -> Iterator[str]:
    narrower = Terminal(
        columns=place.columns - 2 if place.columns else None,
        colours=place.colours,
        unicode=place.unicode,
    )
    drawn, _ = table_layout.draw(block, narrower, dashes=True)
    if narrower.columns and max(map(table_layout.width, drawn), default=0) > narrower.columns:
        drawn = list(_records(block, narrower))
    yield from (f"  {line}".rstrip() for line in drawn)


def _records(block: Table, place: Terminal) -> Iterator[str]:
    """Yield A table that is too wide for its place: a line for each cell, under the name of its column."""
    indent = max(len(column.header) for column in block.columns) + 3
    for number, row in enumerate(block.rows):
        if number:
            yield ""
        for column, cell in zip(block.columns, row, strict=True):
            text, style = (cell, "") if isinstance(cell, str) else (cell.text, cell.style)
            title = f"{column.header}:" if column.header else ""
            for line in terminal.wrapped(text, place, indent=indent):
                painted = colour.paint(line, style, on=place.colours)
                yield f"{title:<{indent}}{painted}" if column.header else painted
                title = ""


def picture(block: page.Picture, width: int, place: Terminal) -> str:
    """Return `[aaaaaabbb...]  0.75 of 1`, `width` characters between the brackets."""
    whole = max(block.total, sum(amount for _, amount in block.parts)) or 1
    drawn, held, end = [], 0, 0
    for position, amount in block.parts:
        held += amount
        start, end = end, round(held / whole * width)
        if amount and end == start < width:
            end += 1  # a small amount still shows
        drawn.append(_part(page.letter(position), position, end - start, place))
    free = ("·" if place.unicode else ".") * (width - end)
    caption = colour.paint(block.caption, "bad" if block.over else "", on=place.colours)
    return f"[{''.join(drawn)}{colour.paint(free, 'dim', on=place.colours)}]  {caption}"


def _part(name: str, position: int, width: int, place: Terminal) -> str:
    if not place.colours:
        return name * width
    return colour.tenant(f"{name:^{width}}" if width else "", position, on=True)


def _room(used: int, place: Terminal) -> int:
    free = (place.columns or _PLAIN_WIDTH) - used - len("      []  ")
    return max(_NARROWEST_PICTURE, min(_WIDEST_PICTURE, free))
