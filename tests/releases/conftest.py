"""The simulated GPUs of the agent's tests, and an arbiter of any release in a separate process."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.conftest import gpus, short_path, simulation
from tests.releases.release import HERE, THIS, Release
from tests.webhook.conftest import cluster, manifests

__all__ = ["cluster", "gpus", "manifests", "short_path", "simulation"]  # fixtures


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)


class Arbiter:
    """A running arbiter."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def give(self, pod: str, memory_bytes: int) -> dict[str, list[int]]:
        """Resize a pod; return by pod the bytes it holds, and by how many processes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pod} {memory_bytes}\n")
        self._process.stdin.flush()
        return dict(json.loads(self.line()))

    def line(self) -> str:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], 30)[0], "no answer"
        return self._process.stdout.readline()


@contextlib.contextmanager
def arbiter(release: Release, directory: Path, uuid: str, *isolation: str) -> Iterator[Arbiter]:
    """Start an arbiter, whose shares have this isolation if the release knows any. It is killed at the end, as a node's agent may be."""
    command: list[str | Path] = [sys.executable, HERE / "arbiter_process.py", directory, uuid]
    command += isolation if release is THIS else ()
    process = subprocess.Popen(
        command, env=release.environment, cwd="/", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        made = Arbiter(process)
        said = made.line().strip()
        assert (said == release.name) is (release is not THIS), said
        yield made
    finally:
        process.kill()
        process.communicate()
