"""Inputs through a target in Python, one after the other, without a fuzzer: `python -m tests.fuzz.replaying TARGET FILE…`."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

INPUT_SECONDS = 10
FIRST_SECONDS = 60  # also for what is imported when it is needed


def main(name: str, *files: str) -> None:
    """The first that breaks a law ends it, after its name."""
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
