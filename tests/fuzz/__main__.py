"""`make fuzz`: runs all targets in turn and prints a table. `--replay TARGET FILE` runs one input."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz import running, table

MAX_FINDS = 8  # per target, or two in the same place: fix those first
ROUND_SECONDS = 60.0


def main() -> int:
    """Return 1 if any target found an input."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all, or some of {', '.join(table.TARGETS)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them together")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run this input alone, through the one TARGET")
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(table.TARGETS)
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}: there are {', '.join(table.TARGETS)}")
    names = arguments.targets or list(table.TARGETS)
    if arguments.replay:
        ended = running.replay(names[0], arguments.replay)
        print(running.tail(ended.stdout + ended.stderr))  # noqa: T201
        return int(ended.returncode != 0)
    failures = {name for name in names if _fuzzed(name, arguments.minutes * 60 / len(names))}
    return int(bool(failures))


def _fuzzed(name: str, seconds: float) -> bool:
    """Fuzz for the given time, in rounds, because libFuzzer ends with each find."""
    begin, executions, finds, places = time.monotonic(), 0, list[Path](), set[str]()
    while (left := begin + seconds - time.monotonic()) > 1 and len(places) == len(finds) < MAX_FINDS:
        done = running.run(name, min(left, ROUND_SECONDS), whole=True)
        executions += done.executions
        if done.find is not None:
            finds.append(done.find)
            places.add(running.place(done.said))
            print(f"{running.tail(done.said)}\n{running.how_to_keep(name, done.find)}\n", flush=True)  # noqa: T201
    known = len(list(running.cache(name).iterdir())) + len(table.cases(name))
    minutes = (time.monotonic() - begin) / 60
    print(  # noqa: T201
        f"{name:<18} {minutes:6.1f} min {executions:>10,} executions {known:>6,} inputs known {len(finds):>3} finds",
        flush=True,
    )
    return bool(finds)


if __name__ == "__main__":
    sys.exit(main())
