"""Makes the pictures of this folder: of the system, of the code's folders, and of the plugin's output.

The plugin runs on a believable cluster, in a pseudo-terminal of a fixed size and at a fixed time.

Run: `make docs`; a test says when it is time to.
"""

from __future__ import annotations

import dataclasses
import html
import os
import pty
import re
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from docs.images import believable, layout, system, tree

ROOT = Path(__file__).resolve().parents[2]

# Picture: the columns of the terminal and what is typed after `kubectl gpushare`.
SCENES = {
    "top": (148, "top"),
    "top-pods": (100, "top pods -A"),
    "describe": (112, "describe gpu gpu-1/2"),
    "why": (100, f"why {believable.WAITS} -n ml"),
    "fit": (100, "fit --request 0.4 --memory 16Gi --count 6"),
}
TREE = (112, 20)  # columns and rows of `top -i`
PLOT = "simulate -f half-gpu.yaml --repeat 40 --nodes 2x8 --plot"

CHARACTER, LINE, MARGIN, FONT = 8.4, 19, 16, 14  # pixels
INK, PAPER = "#d5d8de", "#1d2027"
COLOURS = ("#4b5160", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", INK)
LIGHT = ("#7f8797", "#ff8f98", "#b5e08f", "#f5d58f", "#8fc8ff", "#dc9ff0", "#7fd7e2", "#ffffff")
_SGR = re.compile(r"\x1b\[([\d;]*)m")


@dataclasses.dataclass(frozen=True, slots=True)
class Style:
    """How a run of characters looks."""

    ink: str = INK
    paper: str = ""
    bold: bool = False

    def after(self, codes: str) -> Style:
        """The style after an escape sequence."""
        style = self
        for code in map(int, filter(None, codes.split(";"))) if codes else (0,):
            tens, ones = divmod(code, 10)
            if code == 0:
                style = Style()
            elif code == 1:
                style = dataclasses.replace(style, bold=True)
            elif code in {39, 49}:  # the terminal's own
                style = dataclasses.replace(style, **({"ink": INK} if code == 39 else {"paper": ""}))
            elif code == 7:  # reverse
                style = dataclasses.replace(style, ink=PAPER, paper=style.ink)
            elif tens in {3, 9}:
                style = dataclasses.replace(style, ink=PAPER if code == 30 else (COLOURS if tens == 3 else LIGHT)[ones])
            elif tens in {4, 10}:
                style = dataclasses.replace(style, paper=(COLOURS if tens == 4 else LIGHT)[ones])
        return style


def picture(lines: list[str], columns: int) -> str:
    """Lines of a terminal as SVG."""
    width = round(columns * CHARACTER + 2 * MARGIN)
    height = len(lines) * LINE + 2 * MARGIN
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="{FONT}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
    ]
    for number, line in enumerate(lines):
        drawn += _drawn(line, MARGIN + number * LINE)
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _drawn(line: str, top: float) -> Iterator[str]:
    for column, text, style in _runs(line):
        x, width = round(MARGIN + column * CHARACTER, 1), round(len(text) * CHARACTER, 1)
        if style.paper:
            yield f'<rect x="{x}" y="{top}" width="{width}" height="{LINE}" fill="{style.paper}"/>'
        if text.strip():
            weight = ' font-weight="bold"' if style.bold else ""
            yield (
                f'<text x="{x}" y="{top + FONT}" fill="{style.ink}"{weight} textLength="{width}" '
                f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{html.escape(text)}</text>'
            )


def _runs(line: str) -> Iterator[tuple[int, str, Style]]:
    """Column, text and style of what looks alike; long gaps are not drawn."""
    style, column = Style(), 0
    parts = _SGR.split(line)
    for position, part in enumerate(parts):
        if position % 2:
            style = style.after(part)
            continue
        for run in re.split(r"( {2,})", part) if not style.paper else [part]:
            if run.strip() or style.paper:
                yield column, run, style
            column += len(run)


def session(words: list[str], columns: int) -> list[str]:
    """The lines that the plugin prints at a terminal this wide, at the cluster's moment."""
    child, terminal = pty.fork()
    if child == 0:
        _play(words, columns)
    said = b""
    while chunk := _read(terminal):
        said += chunk
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) not in {0, 2}:  # 2: `fit` says no
        sys.exit(f"kubectl gpushare {' '.join(words)} failed: {said.decode()}")
    return said.decode().replace("\r\n", "\n").rstrip("\n").split("\n")


def _play(words: list[str], columns: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    os.environ.pop("NO_COLOR", None)
    os.environ.update(TERM="xterm-256color", COLUMNS=str(columns))
    time.time = lambda: believable.NOW
    # For as long as the process lives: Python remembers of its streams what they were before the fork.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    from kubectl_gpushare import cli

    os._exit(cli.main(words))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # what Linux says when the other side has closed
        return b""


def main(folder: str) -> None:
    """Write all pictures."""
    (Path(folder) / "system.svg").write_text(system.picture())
    (Path(folder) / "layout.svg").write_text(layout.house())
    (Path(folder) / "layout-agent.svg").write_text(layout.agent())
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["KUBECTL_PATH"] = str(believable.kubectl(Path(scratch)))
        for name, (columns, typed) in SCENES.items():
            lines = session(typed.split(), columns)
            prompt = f"\x1b[90m$\x1b[0m \x1b[1mkubectl gpushare {typed}\x1b[0m"
            (Path(folder) / f"{name}.svg").write_text(picture([prompt, "", *lines], columns))
        (Path(folder) / "top-i.svg").write_text(picture(tree.lines(*TREE), TREE[0]))
        words = PLOT.replace("half-gpu.yaml", str(ROOT / "config" / "samples" / "half-gpu.yaml")).split()
        session([*words, str(Path(folder).absolute() / "simulate.svg")], 100)


if __name__ == "__main__":
    main(sys.argv[1])
