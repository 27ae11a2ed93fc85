"""Start and key latency of `kubectl gpushare top -i` at a terminal, from a saved cluster of 5,000 nodes × 8 GPUs.

The start is the time from the command to the first full screen; `top` on the same file is the baseline. A key's
latency is the time from the key to the last byte of the screen that it changes, the median of a few presses. A screen
that comes within 100 ms is felt as immediate. The CPU time does not depend on what else the machine does.

Prints a table, then one JSON object a line per figure. Run: `python bench/top_interactive.py [NODES]`.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import cli

SIZES = ((24, 80), (50, 200))  # lines and columns
QUIET_SECONDS = 0.25  # without output, after which a screen is complete
PATIENCE_SECONDS = 120.0
FELT_MS = 100.0
# What is pressed, in order: name, keys, presses. Each press changes the screen.
KEYS = (
    ("down", b"\x1b[B", 20),
    ("page-down", b"\x1b[6~", 20),
    ("end", b"\x1b[F", 1),
    ("home", b"\x1b[H", 1),
    ("open-node", b"\x1b[C", 1),
    ("sort", b"s", 5),
    ("filter-character", b"/", 1),
    ("filter-character", b"9", 1),
    ("end-filter", b"\x1b\x1b", 1),
    ("open-all", b"e", 1),
    ("down-all-open", b"\x1b[B", 10),
    ("end-all-open", b"\x1b[F", 1),
    ("close-all", b"E", 1),
)


class Session:
    """The plugin at a terminal of this size."""

    def __init__(self, environment: dict[str, str], size: tuple[int, int], words: tuple[str, ...]) -> None:
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, *cli.PLUGIN, *words],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(inside)

    def quiet(self, *, until: bytes = b"") -> float:
        """Return when the last byte came before a pause, which counts only once `until` was seen."""
        last, seen, said = time.perf_counter(), not until, b""
        deadline = last + PATIENCE_SECONDS
        while time.perf_counter() < deadline:
            if not select.select([self._terminal], [], [], QUIET_SECONDS)[0]:
                if seen and said:
                    return last
                continue
            said += os.read(self._terminal, 1 << 16)
            last, seen = time.perf_counter(), seen or until in said
        sys.exit(f"no screen came; the last that did: {said[-2000:]!r}")

    def press(self, keys: bytes) -> tuple[float, float]:
        """Return the milliseconds until the screen is complete, and those of CPU time."""
        pressed, used = time.perf_counter(), self.cpu_ms()
        os.write(self._terminal, keys)
        return (self.quiet() - pressed) * 1000, self.cpu_ms() - used

    def cpu_ms(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024

    def close(self) -> None:
        os.write(self._terminal, b"q")
        self._process.wait(PATIENCE_SECONDS)
        os.close(self._terminal)


Figure = tuple[float, float]  # milliseconds: until the screen is complete, and of CPU time


def measure(environment: dict[str, str], path: Path, size: tuple[int, int]) -> tuple[dict[str, Figure], float]:
    """Return the start and the keys by name, and the greatest memory in MiB."""
    session = Session(environment, size, ("top", "-i", "--from", str(path)))
    figures = {"start": ((session.quiet(until=b"q quit") - session.started) * 1000, session.cpu_ms())}
    for name, keys, presses in KEYS:
        taken = sorted(session.press(keys) for _ in range(presses))
        cpu_ms = sum(cpu for _, cpu in taken) / presses  # a tick is 10 ms
        figures[name] = taken[len(taken) // 2][0], cpu_ms
    memory = session.memory_mib()
    session.close()
    return figures, memory


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "nodes.json"
        cli.save(path, count)
        environment = {**os.environ, "PYTHONPATH": str(cli.ROOT)}
        measure(environment, path, SIZES[0])  # compiles the modules
        plain = cli.measure(environment, *cli.PLUGIN, "top", "--from", str(path))
        measured = {size: measure(environment, path, size) for size in SIZES}
    print(f"{count} nodes × {cli.GPUS} GPUs; milliseconds, and those of CPU time\n")
    print(f"{'':<18}" + "".join(f"{f'{columns}×{rows}':>16}" for rows, columns in SIZES))
    print(f"{'top, plain':<18}{plain.seconds * 1000:>9.0f}{plain.cpu_seconds * 1000:>7.0f}")
    for name in measured[SIZES[0]][0]:
        print(f"{name:<18}" + "".join("{:>9.0f}{:>7.0f}".format(*measured[size][0][name]) for size in SIZES))
    print(f"\nMiB: top {plain.memory_mib:.0f}, top -i {measured[SIZES[0]][1]:.0f}\n")
    for (rows, columns), (figures, memory) in measured.items():
        for name, (wall_ms, cpu_ms) in figures.items():
            is_start = name == "start"
            limits = (plain.seconds * 1000, plain.cpu_seconds * 1000) if is_start else (FELT_MS, FELT_MS)
            for end, value, limit in zip(("", ".cpu"), (wall_ms, cpu_ms), limits, strict=True):
                figure = {"figure": f"top-i.{columns}x{rows}.{name}{end}", "value": round(value), "unit": "ms"}
                against = {"against": "top" if is_start else "100 ms", "ratio": round(value / limit, 2)}
                print(json.dumps({**figure, **against}))
        figure = {"figure": f"top-i.{columns}x{rows}.memory", "value": round(memory), "unit": "MiB", "against": "top"}
        print(json.dumps({**figure, "ratio": round(memory / plain.memory_mib, 2)}))


if __name__ == "__main__":
    main()
