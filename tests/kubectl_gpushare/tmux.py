"""A terminal that a program can look at: one window of a tmux server of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SECONDS = 30.0
_BETWEEN_SECONDS = 0.05


class Window:
    """What a person at this terminal sees and types."""

    def __init__(self, socket: Path, log: Path) -> None:
        self._socket = socket
        self._log = log

    def type(self, text: str) -> None:
        """Types a line."""
        self._tmux("send-keys", "-l", text)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Presses keys, by tmux' names for them: `Enter`, `Tab`, `C-c`."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size of the window; returns when programs in it can see that: tmux tells them some time later."""
        deadline = time.monotonic() + SECONDS
        device = self.state("pane_tty")
        while True:
            self._tmux("resize-window", "-x", str(columns), "-y", str(rows))
            with open(device) as terminal:  # noqa: PTH123 - a terminal, not a file
                size = os.get_terminal_size(terminal.fileno())
            if size == (columns, rows):
                return
            assert time.monotonic() < deadline, f"tmux told its programs {size} and not {columns} by {rows}"
            time.sleep(_BETWEEN_SECONDS)

    def screen(self, *, colours: bool = False) -> list[str]:
        """The lines now on it."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else [])).split("\n")[:-1]

    def state(self, name: str) -> str:
        """A value that tmux knows of the window, such as `alternate_on`."""
        return self._tmux("display-message", "-p", f"#{{{name}}}").strip()

    def until(self, true: Callable[[list[str]], bool]) -> list[str]:
        """The screen as soon as this is true of it."""
        deadline = time.monotonic() + SECONDS
        while not true(shown := self.screen()):
            assert time.monotonic() < deadline, "it never came; there was:\n" + "\n".join(shown)
            time.sleep(_BETWEEN_SECONDS)
        return shown

    def shows(self, text: str) -> list[str]:
        """The screen as soon as this text is on it."""
        return self.until(lambda shown: any(text in line for line in shown))

    def written(self) -> bytes:
        """Everything that was sent to the terminal so far."""
        return self._log.read_bytes()

    def record(self) -> None:
        """Begins to keep what is sent to it."""
        self._tmux("pipe-pane", "-o", f"cat >> {self._log}")

    def _tmux(self, *words: str) -> str:
        return _run(self._socket, *words)


@contextmanager
def window(folder: Path, environment: Mapping[str, str], *, columns: int = 120, rows: int = 40) -> Iterator[Window]:
    """A shell in a window of this size; it is gone afterwards with all it runs."""
    socket, log = folder / "tmux", folder / "written"
    log.touch()
    rc = folder / "rc"
    rc.write_text("PS1='ready> '\nbind 'set bell-style none'\n")
    size = ("-x", str(columns), "-y", str(rows))
    shell = f"exec bash --noprofile --rcfile {rc} -i"
    # Without a size of its own a window has that of a client, of which there is none.
    _run(socket, "new-session", "-d", *size, shell, environment={**environment, "TERM": "xterm-256color"})
    try:
        _run(socket, "set-option", "-g", "window-size", "manual")
        terminal = Window(socket, log)
        terminal.shows("ready>")
        yield terminal
    finally:
        _run(socket, "kill-server")


def _run(socket: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    program = shutil.which("tmux")
    assert program is not None
    command = [program, "-f", "/dev/null", "-S", str(socket), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
    assert ended.returncode == 0, f"{words}: {ended.stderr}"
    return ended.stdout
