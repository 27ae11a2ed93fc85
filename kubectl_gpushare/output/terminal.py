"""What the place we print to can show: width, colours, characters."""

from __future__ import annotations

import dataclasses
import os
import shutil
import textwrap
from collections.abc import Mapping
from typing import TextIO


@dataclasses.dataclass(frozen=True, slots=True)
class Terminal:
    """`columns` is None where nobody's eyes set a limit: in a pipe or a file."""

    columns: int | None = None
    rows: int = 24
    colours: bool = False
    unicode: bool = True

    @property
    def interactive(self) -> bool:
        """Whether a person looks at it."""
        return self.columns is not None


def printable(text: str) -> str:
    """`text` without what a terminal would obey: names and messages are others' to choose."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "�" for one in text)


def wrapped(text: str, terminal: Terminal, *, indent: int = 0) -> list[str]:
    """A sentence in lines no longer than the terminal less `indent`; in a pipe it stays one line."""
    text = printable(" ".join(text.split()))
    if terminal.columns is None:
        return [text]
    width = max(20, terminal.columns - indent)
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def of(stream: TextIO, *, color: str = "auto", environment: Mapping[str, str] = os.environ) -> Terminal:
    """What `stream` can show; `color` is `auto`, `always` or `never`. NO_COLOR and TERM=dumb speak for `auto`."""
    on_terminal = stream.isatty()
    size = shutil.get_terminal_size() if on_terminal else None
    wanted = on_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return Terminal(
        columns=size.columns if size else None,
        rows=size.lines if size else 24,
        colours=wanted if color == "auto" else color == "always",
        unicode=(stream.encoding or "").lower().replace("-", "") == "utf8",
    )
