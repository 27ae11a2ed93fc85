"""The first GPU as the node sees it, whatever the library in the containers says."""

from __future__ import annotations

import subprocess

from tests.interposer.container import BUILD, Container
from tests.interposer.programs import looking
from tests.programs import PATH, command


class Gpu:
    """The first GPU as the node sees it: what is really in use on it."""

    def __init__(self, container: Container) -> None:
        self._process = subprocess.Popen(
            command(looking.most_of_200_looks),
            env={"PYTHONPATH": PATH, "SIMGPU_DIR": str(container.gpus), "LD_LIBRARY_PATH": str(BUILD / "simgpu")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def most_used(self) -> int:
        """The most of 200 looks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """No more looks."""
        self._process.communicate("", timeout=10)
