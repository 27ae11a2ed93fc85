"""Measures the first GPU's memory as the node sees it, without the library."""

from __future__ import annotations

import subprocess

from tests.interposer.container import BUILD, Container
from tests.interposer.programs import looking
from tests.programs import PATH, command


class Gpu:
    """The memory in use on the first GPU, measured from the node."""

    def __init__(self, container: Container) -> None:
        self._process = subprocess.Popen(
            command(looking.most_of_200_looks),
            env={"PYTHONPATH": PATH, "SIMGPU_DIR": str(container.gpus), "LD_LIBRARY_PATH": str(BUILD / "simgpu")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def most_used(self) -> int:
        """Return the maximum of 200 samples."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Stop measuring."""
        self._process.communicate("", timeout=10)
