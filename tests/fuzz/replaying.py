"""Replays inputs through a Python target without a fuzzer: `python -m tests.fuzz.replaying TARGET FILE…`."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

INPUT_SECONDS = 10
FIRST_SECONDS = 60  # also for late imports


def main(name: str, *files: str) -> None:
    """Print the name of each input before it runs; the first one that breaks a law ends the program."""
    run = importlib.import_module(f"tests.fuzz.targets.{name}").run
    for number, file in enumerate(files):
        signal.alarm(INPUT_SECONDS if number else FIRST_SECONDS)
        try:
            run(Path(file).read_bytes())
        except BaseException:
            print(f"{file} breaks a law of {name}:", file=sys.stderr)  # noqa: T201
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
