"""Runs a target under libFuzzer for a while: known inputs, finds, and what is kept.

Known inputs are the cases and those that reached new code in earlier runs on this machine. Each target has a folder in
the cache for the latter.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz import native, table

FINDS = table.ROOT / "build" / "fuzz"
INPUT_SECONDS = 10
MEMORY_MIB = 2048
MAX_KNOWN = 400  # inputs of the cache in a short run, which has no time to read all
_DONE = re.compile(r"^#(\d+)\s", re.MULTILINE)
_FOUND = re.compile(r"Test unit written to (\S+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The outcome of a run.

    executions: the number of inputs tried, including known ones. find: an input that broke a law.
    """

    executions: int
    find: Path | None
    said: str


def cache(name: str) -> Path:
    """Return the folder of a target's inputs on this machine."""
    above = os.environ.get("GPUSHARE_CACHE") or Path.home() / ".cache" / "gpushare"
    return Path(above) / "fuzz" / name


def command(name: str) -> list[str]:
    """Return the command line without options."""
    target = table.of(name)
    return [str(native.built(name))] if target.native else [sys.executable, "-m", "tests.fuzz.engine", name]


@contextlib.contextmanager
def scratch() -> Iterator[dict[str, str]]:
    """Return an environment with a temporary directory, in memory where possible, that is removed at the end."""
    memory = Path("/dev/shm")
    above = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gpushare-fuzz-", dir=above) as directory:
        yield {**os.environ, **native.ENVIRONMENT, "TMPDIR": directory}


class Engine:
    """A process that has imported the Python targets that it ran, so that running another takes little."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.engine"],
            cwd=table.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __call__(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        """Run libFuzzer with these arguments; the first is the target."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.NamedTemporaryFile("r", errors="replace") as said:
            process.stdin.write(json.dumps([["engine", *arguments], said.name]) + "\n")
            process.stdin.flush()
            code = process.stdout.readline()
            return subprocess.CompletedProcess(arguments, int(code or -1), "", said.read())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def run(name: str, seconds: float, *, whole: bool, same: int = 0, engine: Engine | None = None) -> Run:
    """Fuzz for the given time, or until an input breaks a law.

    whole: use all of the cache instead of a part. same: try that many inputs without the cache; they are the same as
    long as cases and code are. engine: run a Python target in this process's forks.
    """
    target, known = table.of(name), cache(name)
    known.mkdir(parents=True, exist_ok=True)
    FINDS.mkdir(parents=True, exist_ok=True)
    with scratch() as environment, tempfile.TemporaryDirectory(prefix="gpushare-fuzz-") as drawn:
        some = list(known.iterdir())
        if not whole and not same:
            for path in random.sample(some, min(len(some), MAX_KNOWN)):
                (Path(drawn) / path.name).write_bytes(path.read_bytes())
        options = {
            "max_total_time": max(1, round(seconds)),
            "max_len": target.longest,
            "timeout": INPUT_SECONDS,
            "rss_limit_mb": MEMORY_MIB,
            "artifact_prefix": f"{FINDS}/{name}-",
            **({"seed": 1, "runs": same} if same else {}),
        }
        corpus = [known if whole else drawn, table.CASES / name]
        arguments = [*(f"-{key}={value}" for key, value in options.items()), *map(str, corpus)]
        ended = (
            engine([name, *arguments])
            if engine and not target.native
            else subprocess.run(
                [*command(name), *arguments],
                cwd=table.ROOT,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds + 300,
                check=False,
                env=environment,
            )
        )
        if not whole:
            for path in Path(drawn).iterdir():
                (known / path.name).write_bytes(path.read_bytes())
    counts = [int(count) for count in _DONE.findall(ended.stderr)]
    match = _FOUND.search(ended.stderr)
    # libFuzzer's alarm for slow inputs ends it when it fires while an input is being mutated; that is not a find.
    if ended.returncode not in (0, -signal.SIGALRM) and match is None:
        raise RuntimeError(f"the fuzzer of {name} ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    return Run(max(counts, default=0), Path(match[1]) if match else None, ended.stdout + ended.stderr)


def replay(name: str, *files: Path) -> subprocess.CompletedProcess[str]:
    """Run inputs through a target in a separate process without a fuzzer."""
    program = (
        [str(native.built(f"{name}.kept" if native.missing() else name))]
        if table.of(name).native
        else [sys.executable, "-m", "tests.fuzz.replaying", name]
    )
    with scratch() as environment:
        return subprocess.run(
            [*program, *map(str, files)],
            cwd=table.ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=240,
            check=False,
            env=environment,
        )


def how_to_keep(name: str, find: Path) -> str:
    """Explain what to do about a find, as CONTRIBUTING.md does."""
    here = find.relative_to(table.ROOT) if find.is_relative_to(table.ROOT) else find
    case = f"tests/fuzz/cases/{name}/WHAT-IT-IS"
    return (
        f"A new input breaks a law of {name}. It was drawn at random, so the defect may well be older than your change: "
        f"keep the input as a case, and mend it or open an issue.\n"
        f"To see it again: make fuzz-replay TARGET={name} INPUT={here}\n"
        f"To keep it:      cp {here} {case}\n"
        f"or, elsewhere:   base64 -d > {case} <<<{base64.b64encode(find.read_bytes()).decode()}"
    )


def place(said: str) -> str:
    """Return the line that broke a law, in Python or C."""
    python = re.findall(r'File "[^"]+", line \d+, in \S+', said)
    return (
        python[-1]
        if python
        else next(iter(re.findall(r"#\d+ \S+ in \S+ \S*(?:interposer|simgpu|tests)/\S+", said)), said)
    )


def tail(said: str, *, lines: int = 40) -> str:
    """Return the end of the output without the fuzzer's lines."""
    kept = [line for line in said.splitlines() if not line.startswith(("#", "INFO:", "WARNING: Failed to find"))]
    return "\n".join(kept[-lines:])
