"""Screen: the terminal's other page, redrawn in place without flicker, and given back as it was."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

_ENTER = "\x1b[?1049h\x1b[?25l"  # the other page; no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_CLEAR_LINE = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"


class Screen:
    """The page while it is ours."""

    def __init__(self, stream: TextIO, keys: int | None) -> None:
        self._stream = stream
        self.keys = keys  # file descriptor on which key strokes arrive, if there is one

    def draw(self, lines: Sequence[str], rows: int) -> None:
        """Shows the lines; of more than `rows`, those that fit and how many are missing."""
        if len(lines) > rows:
            lines = [*lines[: rows - 1], f"… {len(lines) - rows + 1} more lines: a taller terminal or -l shows them"]
        text = _HOME + "\n".join(line + _CLEAR_LINE for line in lines) + _CLEAR_BELOW
        self._stream.write(text)
        self._stream.flush()

    def quit_pressed(self) -> bool:
        """Whether `q` was typed; other keys are read and forgotten."""
        if self.keys is None or not select.select([self.keys], [], [], 0)[0]:
            return False
        typed = os.read(self.keys, 64)
        if not typed:
            self.keys = None  # closed: it would be ready for ever
        return b"q" in typed.lower()


@contextlib.contextmanager
def opened(stream: TextIO) -> Iterator[Screen]:
    """Takes the terminal's other page, and gives the terminal back however this ends."""
    with _keys() as keys:
        stream.write(_ENTER)
        try:
            yield Screen(stream, keys)
        finally:
            stream.write(_LEAVE)
            stream.flush()


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
