"""A terminal that a program can read and type into: one window of a separate tmux server."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab import prerequisites

SECONDS = 30.0
_BETWEEN_SECONDS = 0.05


class Window:
    """The screen and the keyboard of a person at this terminal."""

    def __init__(self, socket: Path, log: Path) -> None:
        self._socket = socket
        self._log = log

    def type(self, text: str) -> None:
        """Type a line."""
        self._tmux("send-keys", "-l", text)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names for them: `Enter`, `Tab`, `C-c`."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Resize the window; return once programs in it see the new size, which tmux announces with a delay."""
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
        """Return the lines on the screen."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else [])).split("\n")[:-1]

    def state(self, name: str) -> str:
        """Return a value that tmux knows about the window, such as `alternate_on`."""
        return self._tmux("display-message", "-p", f"#{{{name}}}").strip()

    def until(self, true: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the screen satisfies this condition, and return it."""
        deadline = time.monotonic() + SECONDS
        while not true(shown := self.screen()):
            assert time.monotonic() < deadline, "it never came; there was:\n" + "\n".join(shown)
            time.sleep(_BETWEEN_SECONDS)
        return shown

    def shows(self, text: str) -> list[str]:
        """Wait until the screen shows this text, and return the screen."""
        return self.until(lambda shown: any(text in line for line in shown))

    def written(self) -> bytes:
        """Return everything that was sent to the terminal so far."""
        return self._log.read_bytes()

    def record(self) -> None:
        """Start recording what is sent to the terminal."""
        self._tmux("pipe-pane", "-o", f"cat >> {self._log}")

    def _tmux(self, *words: str) -> str:
        return _run(self._socket, *words)


@contextmanager
def window(folder: Path, environment: Mapping[str, str], *, columns: int = 120, rows: int = 40) -> Iterator[Window]:
    """Open a shell in a window of this size; at the end, end it with everything it runs."""
    socket, log = folder / "tmux", folder / "written"
    log.touch()
    rc = folder / "rc"
    rc.write_text("PS1='ready> '\nbind 'set bell-style none'\n")
    size = ("-x", str(columns), "-y", str(rows))
    shell = f"exec bash --noprofile --rcfile {rc} -i"
    # A window without a size would get that of a client, and there is no client.
    _run(socket, "new-session", "-d", *size, shell, environment={**environment, "TERM": "xterm-256color"})
    try:
        _run(socket, "set-option", "-g", "window-size", "manual")
        terminal = Window(socket, log)
        terminal.shows("ready>")
        yield terminal
    finally:
        _run(socket, "kill-server")


def _run(socket: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    command = [prerequisites.program("tmux"), "-f", "/dev/null", "-S", str(socket), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
    assert ended.returncode == 0, f"{words}: {ended.stderr}"
    return ended.stdout
