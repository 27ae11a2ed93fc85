"""A webhook as it is deployed: in its own process, with exactly the permissions of its ServiceAccount."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpushare.cluster import api_connection
from tests import forked, programs

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = ("-m", "webhook")
START_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class ServiceAccount:
    """A ServiceAccount as the kubelet mounts it: a directory with token and CA, and variables for the API server."""

    directory: Path
    variables: Mapping[str, str]


class Replica:
    """A running `python -m webhook`. account: None without an API server. environment: of another release, or this
    one.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        account: ServiceAccount | None = None,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "log"
        self._before: dict[str, float] = {}
        flags = ["--host=127.0.0.1", "--probe-host=127.0.0.1", "--port=0", "--probe-port=0"]
        words = [*program, *flags, f"--certificate-directory={directory / 'certificates'}", *arguments]
        variables = {key: value for key, value in (environment or os.environ).items() if key != "KUBECONFIG"}
        variables |= programs.NO_CERTIFICATES
        mounted = None
        if account is not None:
            # Mounted where every client expects it, as in a pod, and visible to this process only.
            mounted = api_connection.SERVICE_ACCOUNT, account.directory
            variables |= account.variables
        with self._log.open("wb") as log:
            self.process = forked.start(
                "webhook",
                words if environment is None else ["-P", *words],
                environment=variables,
                errors=log.fileno(),
                mounted=mounted,
            )
        try:
            until(lambda: self._serving() is not None, self.explain, seconds=START_SECONDS)
        except BaseException:
            self.kill()
            raise
        serving = self._serving() or {}
        self.port, self.probe_port = serving["port"], serving["probe_port"]

    def wait_ready(self) -> None:
        until(lambda: self.probe("/readyz")[0] == 200, self.explain, seconds=START_SECONDS)

    def probe(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metrics(self) -> list[str]:
        """Return the lines of /metrics; raises if there is no answer."""
        status, page = self.probe("/metrics")
        assert status == 200, f"{status} {page}\n{self._log.read_text()}"
        return page.splitlines()

    def metric(self, name: str) -> float:
        for line in self.metrics():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        raise KeyError(name)

    def reviews(self) -> dict[str, float]:
        """Return reviews answered since the last `count_from_here`, by outcome."""
        prefix = 'gpushare_webhook_reviews_total{outcome="'
        lines = [line for line in self.metrics() if line.startswith(prefix)]
        counts = {line[len(prefix) : line.index('"}')]: float(line.rpartition(" ")[2]) for line in lines}
        since = {outcome: count - self._before.get(outcome, 0.0) for outcome, count in counts.items()}
        return {outcome: count for outcome, count in since.items() if count}

    def count_from_here(self) -> None:
        for outcome, count in self.reviews().items():
            self._before[outcome] = self._before.get(outcome, 0.0) + count

    def logged(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self._lines() if line.get("msg") == message]

    def explain(self) -> str:
        return f"{self.probe('/readyz') if hasattr(self, 'probe_port') else ''}\n{self._log.read_text()[-4000:]}"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def _serving(self) -> dict[str, Any] | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the webhook ended:\n{self._log.read_text()}")
        lines = [line for line in self._lines() if str(line.get("msg", "")).startswith("Serving")]
        return lines[0] if lines else None

    def _lines(self) -> list[dict[str, Any]]:
        lines = []
        for line in self._log.read_text().splitlines():
            with contextlib.suppress(ValueError):  # half a line
                lines.append(json.loads(line))
        return lines


@contextlib.contextmanager
def running(
    directory: Path,
    *arguments: str,
    account: ServiceAccount | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Replica]:
    started = Replica(directory, *arguments, account=account, environment=environment)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()


def until(condition: Callable[[], bool], explain: Callable[[], object] = str, *, seconds: float = 20.0) -> None:
    """Poll a condition, for a limited time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)
