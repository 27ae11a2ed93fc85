"""A real Prometheus on loopback, for as long as a test wants it."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lab import addresses, unpacked

START_SECONDS = 30.0
Labels = tuple[tuple[str, str], ...]


class Prometheus:
    """What is asked of it, over its HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """An answer's data. Raises AssertionError with what Prometheus has against the question."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:  # noqa: S310 - ours
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def samples(self, expression: str, **parameters: str) -> dict[Labels, float]:
        """The values of an expression now, by their labels."""
        series = self.get("query", query=expression, **parameters)["result"]
        return {tuple(sorted(entry["metric"].items())): float(entry["value"][1]) for entry in series}

    def value(self, expression: str) -> float | None:
        """The value of an expression with one series, or None if there is none."""
        samples = self.samples(expression)
        assert len(samples) <= 1, (expression, samples)
        return next(iter(samples.values()), None)

    def unanswered(self) -> list[str]:
        """What was wrong with the last scrape of each target of which something was."""
        return [
            f"{target['scrapeUrl']}: {target['lastError']}"
            for target in self.get("targets")["activeTargets"]
            if target["lastError"]
        ]


@contextlib.contextmanager
def running(
    directory: Path, scrapes: Sequence[Mapping[str, Any]], *, rules: str = "", more: tuple[str, ...] = ()
) -> Iterator[Prometheus]:
    """A Prometheus with these scrape_configs, and rules evaluated every second.

    A page that takes longer than the timeout is not there at all, and on a busy machine an agent's took over a second.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "rules.yaml").write_text(rules or "groups: []\n")
    every = {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": [*scrapes]}
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    # None that the kernel gives to an outgoing connection before Prometheus has it.
    (port,) = addresses.free_ports("127.0.0.1", (random.choice(addresses.SPARE_PORTS),))
    command = [
        *(str(unpacked.program("prometheus")), f"--config.file={directory / 'prometheus.yaml'}"),
        *(f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
        *more,
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        _wait(process, f"http://127.0.0.1:{port}/-/ready", directory / "log")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):  # noqa: S310 - ours
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
