"""A node with one simulated GPU, whose memory a program holds; and a share of it, with the shipped library and
arbiter.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from gpushare.allocation import GivenShare
from lab import lab_errors, unpacked
from tests.clients import clients
from tests.deviceplugin import arbiter_node, simulated
from tests.interposer import container

PROBE = simulated.ROOT / "build" / "gpushare-probe"
POD = {"TEST_POD": "trainer", "TEST_CONTAINER": "main"}
DESCRIPTION = f"""
[node]
driver-version = {{driver}}
cuda-version = 12.2
[gpu 0]
model = {clients.MODEL}
memory = 40GiB
compute-capability = 8.0
mig-capable = yes
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Debian:
    """Programs from unpacked Debian packages, and the driver version of the first one."""

    paths: dict[str, Path]
    driver: str


@pytest.fixture(scope="session")
def debian() -> Debian:
    try:
        packages = {name: unpacked.other(name) for name in unpacked.OTHERS}
    except lab_errors.LabError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}: connect to a mirror of Debian and run again")
    return Debian({name: path for name, (path, _) in packages.items()}, packages["nvidia-smi"][1])


@pytest.fixture(scope="session")
def gpus(debian: Debian) -> Iterator[Path]:
    """A node whose driver has nvidia-smi's version, which nvidia-smi requires."""
    simulated.build()
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all", PROBE], check=True, timeout=120)
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as directory:
        description = Path(directory) / "node.ini"
        description.write_text(DESCRIPTION.format(driver=debian.driver))
        simulated.command("create", description, Path(directory) / "gpus")
        yield Path(directory) / "gpus"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where programs run: alone on the node, or in the share."""

    box: container.Container

    def start(self, command: Sequence[str | Path], terminal: str = "xterm") -> subprocess.Popen[str]:
        environment = {**POD, "HOME": "/nonexistent", "TERM": terminal, "LC_ALL": "C.UTF-8", "COLUMNS": "160"}
        return self.box.start(command, environment)


async def holding(place: Place) -> subprocess.Popen[str]:
    """Run a program that allocates memory and holds it."""
    process = place.start([PROBE, "--allocate", f"{clients.HELD_MIB}MiB", "--hold", "120"])
    assert process.stdout is not None
    while not (line := await asyncio.to_thread(process.stdout.readline)).startswith("holding"):
        assert line, process.communicate()
    return process


@pytest.fixture
async def alone(gpus: Path, tmp_path: Path) -> AsyncIterator[Place]:
    """The GPU, with memory held by a program."""
    place = Place(container.Container(tmp_path, gpus, preload=()))
    with container.finishing(await holding(place)):
        yield place


@pytest.fixture
async def share(gpus: Path, short_path: Path) -> AsyncIterator[Place]:
    """A share of it, with memory held by a program in the share."""
    async with arbiter_node.opened(short_path) as node:
        (uuid,) = simulated.uuids(gpus)
        node.add_pod("trainer", GivenShare(("main",), (uuid,), 30, 50, clients.SHARE_GIB << 30))
        place = Place(container.Container(node.socket.parent, gpus))
        with container.finishing(await holding(place)):
            yield place


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as directory:
        yield Path(directory)
