"""Builds the library and the simulated drivers once, and gives each test a node with simulated GPUs and a container on
it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interposer.container import BUILD, ROOT, Container
from tests.interposer.reference_arbiter import GOOD, Misbehaviour, ReferenceArbiter, Share
from tests.simgpu import in_memory

MIB = 1 << 20
DESCRIPTION = """
[node]
name = interposer-tests
driver-version = 580.159.04
cuda-version = 13.0
[gpu 0]
count = 2
model = NVIDIA A100-SXM4-40GB
memory = 4GiB
compute-capability = 8.0
"""

ArbiterMaker = Callable[..., ReferenceArbiter]


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "simgpu"], check=True)
    subprocess.run(["make", "-s", "-C", ROOT / "interposer", "all", "tests"], check=True)


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Path]:
    """A directory with two simulated GPUs of 4 GiB."""
    description = tmp_path / "node.ini"
    description.write_text(DESCRIPTION)
    with in_memory.directory(tmp_path) as directory:
        subprocess.run([BUILD / "simgpu" / "simgpu", "create", description, directory / "gpus"], check=True)
        yield directory / "gpus"


@pytest.fixture
def uuids(gpus: Path) -> list[str]:
    """The UUIDs of the GPUs, in order."""
    return [re.sub(r"^gpu\d+-", "", path.name) for path in sorted(gpus.glob("gpu*"))]


@pytest.fixture
def arbiter_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


@pytest.fixture
def make_arbiter(arbiter_directory: Path, uuids: list[str]) -> Iterator[ArbiterMaker]:
    """Start an arbiter with these limits, in bytes, for the first GPUs, and with this misbehaviour."""
    with ExitStack() as stack:

        def make(*limits: int, behaviour: Misbehaviour = GOOD) -> ReferenceArbiter:
            shares = [Share(uuid, limit) for uuid, limit in zip(uuids, limits, strict=False)]
            return stack.enter_context(ReferenceArbiter(arbiter_directory, shares, behaviour))

        yield make


@pytest.fixture
def container(arbiter_directory: Path, gpus: Path) -> Container:
    """A container with a share."""
    return Container(arbiter_directory, gpus)
