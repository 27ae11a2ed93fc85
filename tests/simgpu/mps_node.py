"""An MPS control daemon on a node of simulated GPUs, and clients that do what a test says."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.programs import command
from tests.simgpu.conftest import COMMAND, DRIVERS, Node, finishing
from tests.simgpu.programs import mps as programs
from tests.simgpu.test_rendezvous import says

CONTROL = DRIVERS / "nvidia-cuda-mps-control"
SAMPLE = Path(__file__).resolve().parents[2] / "simgpu" / "samples" / "two-models.ini"
GPU_0 = {"CUDA_VISIBLE_DEVICES": "0"}


@dataclass(frozen=True, slots=True)
class Daemon:
    """A control daemon. `environment`: that of its clients."""

    node: Node
    environment: Mapping[str, str]

    def tell(self, line: str) -> str:
        """Send a command and return the answer."""
        with finishing(self.node.start([CONTROL], self.environment)) as process:
            return process.communicate(f"{line}\n", timeout=120)[0]

    def server(self) -> int:
        (pid,) = self.tell("get_server_list").split()
        return int(pid)

    def clients(self) -> set[int]:
        return set(map(int, self.tell(f"get_client_list {self.server()}").split()))


@dataclass(slots=True)
class Client:
    """A process that obeys lines. Each answer is the number of CUDA's error, or a value."""

    process: subprocess.Popen[str]
    first: str = field(init=False)
    """The results of cuInit and cuCtxCreate; a failed one ends the process."""

    def __post_init__(self) -> None:
        self.first = says(self.process)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def does(self, line: str) -> int:
        self.send(line)
        return int(says(self.process))


@contextlib.contextmanager
def daemon(node: Node, place: Path, *options: str, **variables: str) -> Iterator[Daemon]:
    """Run a daemon with its pipes in `place`."""
    (place / "pipe").mkdir(parents=True, exist_ok=True)
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(place / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(place)}
    made = Daemon(node, environment)
    with finishing(node.start([CONTROL, "-f", *options], {**environment, **variables})) as process:
        while made.tell("get_default_active_thread_percentage") != "100.0\n":
            assert process.poll() is None
        yield made


@contextlib.contextmanager
def client(node: Node, environment: Mapping[str, str], *, device: int = 0) -> Iterator[Client]:
    with finishing(node.start(command(programs.obeys, device), environment)) as process:
        yield Client(process)


@contextlib.contextmanager
def described(place: Path, **replaced: str) -> Iterator[Node]:
    """Yield a node like the sample, with other values for these keys."""
    text = SAMPLE.read_text()
    for key, value in replaced.items():
        name = key.replace("_", "-")
        assert f"\n{name} = " in text
        text = "\n".join(f"{name} = {value}" if line.startswith(f"{name} = ") else line for line in text.splitlines())
    place.mkdir(exist_ok=True)
    (place / "node.ini").write_text(text)
    subprocess.run([COMMAND, "create", place / "node.ini", place / "gpus"], check=True)
    yield Node(place / "gpus")


NEW_DRIVER = {"driver_version": "620.10", "cuda_version": "13.6"}
