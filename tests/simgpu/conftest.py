"""Fixtures: the simulated drivers, built once; a node of GPUs for each test; programs that run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import programs
from tests.programs import Parameters
from tests.simgpu import in_memory

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = ROOT / "build" / "simgpu"
COMMAND = DRIVERS / "simgpu"
PROBE = ROOT / "build" / "gpushare-probe"


@dataclass(frozen=True, slots=True)
class Node:
    """Simulated GPUs in a directory."""

    directory: Path

    def simgpu(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the `simgpu` command, which may fail."""
        return subprocess.run([COMMAND, *arguments], capture_output=True, text=True)

    def start(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a program that sees these GPUs."""
        return subprocess.Popen(
            [str(part) for part in command],
            env={
                "PATH": os.environ["PATH"],
                "SIMGPU_DIR": str(self.directory),
                "LD_LIBRARY_PATH": str(DRIVERS),
                "PYTHONPATH": programs.PATH,
                "PYTHONDONTWRITEBYTECODE": "1",
                **(environment or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program that sees these GPUs."""
        with finishing(self.start(command, environment)) as process:
            output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def program(
        self, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
    ) -> str:
        """Run one of the tests' programs, which must succeed, and return its output."""
        result = self.run(programs.command(function, *values, **named))
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def nvml(self, code: str, environment: Mapping[str, str] | None = None) -> str:
        """Run Python code with the real pynvml, initialized as `nvml`, and return its output."""
        prelude = "import pynvml as nvml\nnvml.nvmlInit()\ngpu = nvml.nvmlDeviceGetHandleByIndex\n"
        result = self.run([sys.executable, "-c", prelude + code], environment)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def held(self, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Yield a probe that has done what its arguments ask for and keeps its memory."""
        process = self.start([PROBE, *arguments, "--hold", "60"], environment or {})
        assert process.stdout is not None
        while not process.stdout.readline().startswith("holding"):
            assert process.poll() is None
        return process


@contextmanager
def finishing(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield a process, and kill it at the end of the block."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "simgpu"], check=True)
    subprocess.run(["make", "-s", "-C", ROOT / "interposer", PROBE], check=True)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """The sample with two models: two linked A100 with 80 GiB, two L4 with 24 GiB."""
    with in_memory.directory(tmp_path) as directory:
        sample = ROOT / "simgpu" / "samples" / "two-models.ini"
        subprocess.run([COMMAND, "create", sample, directory / "gpus"], check=True)
        yield Node(directory / "gpus")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory, _built: None) -> Callable[[str], Path]:
    """Return a function that compiles a C program in this directory against the simulated driver."""
    programs = tmp_path_factory.mktemp("programs")

    def build(name: str) -> Path:
        source = ROOT / "tests" / "simgpu" / f"{name}.c"
        driver = [f"-L{DRIVERS}", "-l:libcuda.so.1", "-pthread"]
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'simgpu'}"]
        subprocess.run(["gcc", *flags, "-o", programs / name, source, *driver], check=True)
        return programs / name

    return build
