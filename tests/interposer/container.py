"""Runs processes as in a container with a share: with the library preloaded, the arbiter's socket and simulated
drivers.

Each process runs in a mount namespace, so the test uses the library that ships and the real path of the socket.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpushare import contract
from tests import programs, unshared
from tests.programs import Parameters

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LIBRARY = BUILD / "libgpushare.so"
IMPATIENT_LIBRARY = BUILD / "interposer" / "libgpushare-impatient.so"  # waits 0.3 seconds for WELCOME instead of 20
PROBE = BUILD / "gpushare-probe"
DRIVERS = BUILD / "simgpu"
LINK_CUDA = ("-L", DRIVERS, "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined")

_FOLDER = Path(__file__).parent
_COMPILER = ("gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")

_ENTER = f"""
mount -t tmpfs none /run && mkdir -p {contract.CONTAINER_ARBITER_DIRECTORY} || exit 125
mount --bind "$1" {contract.CONTAINER_ARBITER_DIRECTORY} || exit 125
preload="$2"
mounted() {{ [ -z "$1" ] || {{ mkdir "$2" && mount --bind "$1" "$2"; }} || exit 125; }}
mounted "$3" {contract.CONTAINER_MPS_PIPE}
mounted "$4" {contract.CONTAINER_MPS_PARTITION}
shift 4
exec env LD_PRELOAD="$preload" "$@"
"""


@dataclass(frozen=True, slots=True)
class Container:
    """The arbiter's directory and the GPUs that processes are given."""

    arbiter_directory: Path
    gpus: Path
    preload: tuple[Path, ...] = (LIBRARY,)
    drivers: Path = DRIVERS
    environment: Mapping[str, str] = field(default_factory=dict)
    mps_pipe: Path | None = None  # the directory of the GPU's MPS daemon
    mps_partition: Path | None = None  # the directory with the name of the SM partition

    def start(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None, keep: Sequence[int] = ()
    ) -> subprocess.Popen[str]:
        """Start a process with pipes for stdin, stdout and stderr; it inherits the descriptors in `keep`."""
        enter = ["sh", "-c", _ENTER, "sh", str(self.arbiter_directory), " ".join(map(str, self.preload))]
        enter += [str(path or "") for path in (self.mps_pipe, self.mps_partition)]
        return subprocess.Popen(
            [*unshared.MOUNTS, *enter, *map(str, command)],
            env={
                "PATH": os.environ["PATH"],
                "SIMGPU_DIR": str(self.gpus),
                "LD_LIBRARY_PATH": str(self.drivers),
                "PYTHONPATH": programs.PATH,
                "PYTHONDONTWRITEBYTECODE": "1",
                **self.environment,
                **(environment or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=keep,
        )

    def run(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a process to its end."""
        with finishing(self.start(command, environment)) as process:
            output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def program(
        self, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
    ) -> str:
        """Run a test program, expect it to succeed, and return its output."""
        result = self.run(programs.command(function, *values, **named))
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.strip()

    def filled_bytes(self, environment: Mapping[str, str] | None = None) -> int:
        """Allocate as much as the share allows, and return the bytes."""
        result = self.run([PROBE, "--fill"], environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return int(result.stdout.splitlines()[-1].removeprefix("filled "))


def compiled(source: str, path: Path, *flags: str | Path) -> Path:
    """Compile a C source of this folder; with a path that ends in .so, to a shared object."""
    shared = ["-shared", "-fPIC"] if path.suffix == ".so" else []
    subprocess.run([*_COMPILER, *shared, _FOLDER / source, "-o", path, *flags], check=True, timeout=60)
    return path


@contextmanager
def finishing(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill the process at the end of the block, if it still runs."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)


def with_driver_before(container: Container, source: str, directory: Path) -> Container:
    """Return a container with a driver built from this folder's source in front of the simulated one.

    The directory receives both; the simulated one becomes libcudb.so.1. Its functions' offsets are defined as AT_ and
    the function's name.
    """
    driver = (container.drivers / "libcuda.so.1").read_bytes()
    (directory / "libcudb.so.1").write_bytes(driver.replace(b"\0libcuda.so.1\0", b"\0libcudb.so.1\0"))
    link: list[str | Path] = [
        "-L",
        directory,
        "-Wl,--no-as-needed",
        "-l:libcudb.so.1",
        "-Wl,-soname,libcuda.so.1",
        "-ldl",
    ]
    symbols = subprocess.check_output(
        ["nm", "-D", "--defined-only", directory / "libcudb.so.1"], text=True
    ).splitlines()
    places = [f"-DAT_{name}=0x{at}" for at, _, name in (symbol.split() for symbol in symbols) if name.startswith("cu")]
    compiled(source, directory / "libcuda.so", *places, *link).rename(directory / "libcuda.so.1")
    return replace(container, drivers=directory)


def lines_of_the_library(errors: str) -> list[str]:
    """Return the lines on stderr that the library printed."""
    return [line for line in errors.splitlines() if line.startswith("gpushare:")]


def complaints_of_the_library(errors: str) -> list[str]:
    """Return the library's lines except for the one about a full share."""
    return [line for line in lines_of_the_library(errors) if " MiB refused: " not in line]
