"""The output as values that views make: tables, pages and documents.

`layout` decides widths and colours. Most values are NamedTuples, which `top` defines faster than dataclasses. The
schema of documents, for `-o json` and `-o yaml`, is stable: a breaking change gets a new version.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

NONE = "<none>"
UNKNOWN = "<unknown>"


class Column(NamedTuple):
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
    """Rows with a cell for each column; `caption` is a sentence above them for people."""

    columns: tuple[Column, ...]
    rows: Sequence[Row]
    totals: Mapping[str, str | Cell] | None = None  # one more row: cells by header, the others empty
    caption: str = ""
    what: str = "resources"  # "No … found."

    @property
    def totals_row(self) -> Row | None:
        if self.totals is None:
            return None
        return (_TOTAL, *(self.totals.get(column.header, "") for column in self.columns[1:]))


def sentence(text: str) -> str:
    return " ".join(text.split()) or NONE


def plain(text: str) -> str:
    """Return `text` as kubectl shows it in a cell: without spaces, never empty."""
    return sentence(text).replace(" ", "-")


class Field(NamedTuple):
    """`Key:  value`; several values stand below each other."""

    key: str
    values: tuple[str, ...]
    style: str = ""


class Picture(NamedTuple):
    """A bar of what tenants hold: `(position of the tenant, amount)`, in the same unit as `total`."""

    label: str
    parts: tuple[tuple[int, int], ...]
    total: int
    caption: str
    over: bool = False  # more is held than there is


class Commands(NamedTuple):
    """Lines to paste into a shell: never wrapped."""

    lines: tuple[str, ...]


Block = str | Picture | Table | Commands


class Section(NamedTuple):
    """`Title:` and blocks below it, indented."""

    title: str
    blocks: tuple[Block, ...]
    style: str = ""


Page = tuple[Field | Section, ...]


def field(key: str, *values: str, style: str = "") -> tuple[Field, ...]:
    said = tuple(value for value in values if value)
    return (Field(key, said, style),) if said else ()


def section(title: str, blocks: Iterable[Block], style: str = "") -> tuple[Section, ...]:
    said = tuple(blocks)
    return (Section(title, said, style),) if said else ()


def letter(position: int) -> str:
    letters = string.ascii_letters
    return letters[position] if position < len(letters) else "#"


API_VERSION = "plugin.gpushare.io/v1alpha1"  # of these documents; no API server serves them

Document = dict[str, Any]


class Listing(NamedTuple):
    """A list in all its forms; only that of the chosen format is made."""

    table: Callable[[], Table]
    document: Callable[[], Document]  # each of its `items` is also a row of CSV
    names: Callable[[], Iterable[str]]  # for `-o name`
    problems: Callable[[], Sequence[str]] = tuple  # sentences of the ledger, and of facts that could not be read


def list_document(kind: str, items: Iterable[Mapping[str, Any]], **more: Any) -> Document:
    """Return a list as kubectl's are. Its items are an iterator: made one by one, once."""
    return {"apiVersion": API_VERSION, "kind": kind, "items": iter(items), **more}


def single_document(kind: str, content: Mapping[str, Any]) -> Document:
    return {"apiVersion": API_VERSION, "kind": kind, **content}
