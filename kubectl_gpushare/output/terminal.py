"""An output stream's width, characters and colours, and the palette: styles by meaning, in 16 colours."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TextIO

from gpushare import printable

_NARROWEST = 16  # no sentence is broken into shorter lines
_MARKS = "/.,:=-_"  # after which a word that is longer than a line may break


@dataclasses.dataclass(frozen=True, slots=True)
class Terminal:
    """A stream's capabilities. `columns` is None, for no limit, in a pipe or a file."""

    columns: int | None = None
    rows: int = 24
    colours: bool = False
    unicode: bool = True

    @property
    def interactive(self) -> bool:
        return self.columns is not None


def wrapped(text: str, terminal: Terminal, *, indent: int = 0) -> list[str]:
    """Return a sentence in lines no longer than the terminal less `indent`; in a pipe it stays one line."""
    text = printable.replaced(" ".join(text.split()))
    if terminal.columns is None:
        return [text]
    return broken(text, max(_NARROWEST, terminal.columns - indent))


def broken(text: str, width: int) -> list[str]:
    lines: list[str] = []
    rest = text
    while len(rest) > width:
        cut = rest.rfind(" ", 0, width + 1)
        if cut <= 0:
            cut = max(rest.rfind(mark, 0, width) for mark in _MARKS) + 1 or width
        lines.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*lines, rest]


def detect(stream: TextIO, *, color: str = "auto", environment: Mapping[str, str] = os.environ) -> Terminal:
    """Return what `stream` can show. `color`: `auto`, which NO_COLOR and TERM=dumb turn off, `always` or `never`."""
    on_terminal = stream.isatty()
    columns, rows = _size(stream, environment) if on_terminal else (None, 24)
    wanted = on_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return Terminal(
        columns=columns,
        rows=rows,
        colours=wanted if color == "auto" else color == "always",
        unicode=(stream.encoding or "").lower().replace("-", "") == "utf8",
    )


def _size(stream: TextIO, environment: Mapping[str, str]) -> tuple[int, int]:
    """Return columns and rows of a terminal; COLUMNS and LINES override them. 80 by 24 if the terminal reports none."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    settings = [environment.get(name, "") for name in ("COLUMNS", "LINES")]
    overruled = [int(text) if text.isdecimal() else 0 for text in settings]
    return overruled[0] or columns or 80, overruled[1] or rows or 24


PALETTE: Mapping[str, str] = {
    "good": "32",
    "warn": "33",
    "bad": "1;31",
    "dim": "90",
    "bold": "1",
    "compute": "32",
    "memory": "36",
}

# Colours of a GPU's tenants: the text on them is black, so only the lighter half of the 16.
TENANTS = ("42", "46", "43", "45", "44", "102", "106", "103", "105", "104")


def paint(text: str, style: str, *, on: bool) -> str:
    return f"\x1b[{PALETTE[style]}m{text}\x1b[0m" if on and style and text else text


def tenant(text: str, position: int, *, on: bool) -> str:
    return f"\x1b[30;{TENANTS[position % len(TENANTS)]}m{text}\x1b[0m" if on and text else text
