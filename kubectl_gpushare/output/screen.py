"""Screen: the terminal's alternate screen. Only changed lines are written; the terminal is restored at the end."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # the alternate screen; no cursor; no line wrap
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_LINE = "\x1b[{};1H"  # to the beginning of a line, counted from 1
_CLEAR_LINE = "\x1b[K"  # before the line: after a full one it would erase the last character
_CLEAR_BELOW = "\x1b[J"


class Screen:
    """The alternate screen while it is open."""

    def __init__(self, stream: TextIO, keys: int | None) -> None:
        self._stream = stream
        self._shown: Sequence[str] | None = None  # None: not known
        self.keys = keys  # file descriptor on which key strokes arrive, if there is one

    def draw(self, lines: Sequence[str], rows: int) -> None:
        """Show the lines; of more than `rows`, those that fit and how many are missing."""
        if len(lines) > rows:
            lines = [*lines[: rows - 1], f"… {len(lines) - rows + 1} more lines below the window"]
        shown = self._shown or ()
        text = [
            f"{_LINE.format(number + 1)}{_CLEAR_LINE}{line}"
            for number, line in enumerate(lines)
            if number >= len(shown) or shown[number] != line
        ]
        if (self._shown is None or len(lines) < len(shown)) and len(lines) < rows:
            text.append(_LINE.format(len(lines) + 1) + _CLEAR_BELOW)
        self._shown = lines
        self._stream.write("".join(text))
        self._stream.flush()

    def forget(self) -> None:
        """Draw everything next time: a terminal that was resized may have moved its lines."""
        self._shown = None

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
    """Open the alternate screen; restore the terminal however the block ends."""
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
