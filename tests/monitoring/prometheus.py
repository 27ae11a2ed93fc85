"""Runs a real Prometheus on loopback for a test."""

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
    """A client of Prometheus' HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response. Raises AssertionError with Prometheus' error."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:  # noqa: S310 - ours
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def samples(self, expression: str, **parameters: str) -> dict[Labels, float]:
        """Return the current values of an expression by their labels."""
        series = self.get("query", query=expression, **parameters)["result"]
        return {tuple(sorted(entry["metric"].items())): float(entry["value"][1]) for entry in series}

    def value(self, expression: str) -> float | None:
        """Return the value of an expression with one series; None if there is none."""
        samples = self.samples(expression)
        assert len(samples) <= 1, (expression, samples)
        return next(iter(samples.values()), None)

    def unanswered(self) -> list[str]:
        """Return the last scrape error of each target that has one."""
        return [
            f"{target['scrapeUrl']}: {target['lastError']}"
            for target in self.get("targets")["activeTargets"]
            if target["lastError"]
        ]


@contextlib.contextmanager
def running(
    directory: Path, scrapes: Sequence[Mapping[str, Any]], *, rules: str = "", more: tuple[str, ...] = ()
) -> Iterator[Prometheus]:
    """Run a Prometheus with these scrape_configs, which evaluates rules every second.

    A page slower than the timeout is lost; on a busy machine an agent's takes over a second.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "rules.yaml").write_text(rules or "groups: []\n")
    every = {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": [*scrapes]}
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    # A port that the kernel does not give to an outgoing connection before Prometheus listens.
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
