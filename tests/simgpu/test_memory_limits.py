"""Memory limits by control group, as drivers from version 615 on enforce them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import cgroups
from tests.simgpu.conftest import COMMAND, PROBE, Node, finishing
from tests.simgpu.programs import memory_limits

pytestmark = pytest.mark.slow

GIB = 1 << 30
NONE = (1 << 64) - 1
DESCRIPTION = """
[node]
driver-version = {driver}
cuda-version = 13.4
[gpu 0]
model = NVIDIA A100-SXM4-40GB
memory = 40GiB
compute-capability = 8.0
mig-capable = yes
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A new cgroup with two cgroups in it."""
    with cgroups.new() as path:
        for name in ("one", "two"):
            (path / name).mkdir()
        yield path


def node(directory: Path, driver: str = "615.20.01") -> Node:
    (directory / "node.ini").write_text(DESCRIPTION.format(driver=driver))
    subprocess.run([COMMAND, "create", directory / "node.ini", directory / "gpus"], check=True)
    return Node(directory / "gpus")


def joining(cgroup: Path, *command: str | Path) -> list[str | Path]:
    """Return a command that runs in a control group."""
    return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', cgroup, *command]


@contextlib.contextmanager
def holding(node: Node, cgroup: Path, size: str) -> Iterator[None]:
    """Keep a process of the group running that has this much memory."""
    with finishing(node.start(joining(cgroup, PROBE, "--allocate", size, "--hold", "60"))) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("holding"):
            assert process.poll() is None
        yield


def allocated(node: Node, cgroup: Path, *sizes: str) -> list[str]:
    """Let a process of the group allocate these amounts in order; return for each whether it was allocated or
    refused.
    """
    said = node.run(joining(cgroup, PROBE, "--allocate", ",".join(sizes))).stdout.splitlines()
    return [line.split()[0] for line in said if line.startswith(("allocated", "refused"))]


def test_hard_limit_applies_to_all_processes_of_a_group_together(tmp_path: Path, cgroup: Path) -> None:
    simulated = node(tmp_path)
    said = simulated.program(memory_limits.sets, str(cgroup), 0, 4 * GIB)
    assert said == f"NVMLError_NotFound set {(0, 4 * GIB, 0)}"
    with holding(simulated, cgroup / "one", "3GiB"):
        assert allocated(simulated, cgroup / "two", "2GiB", "1GiB", "1") == ["refused", "allocated", "refused"]
        assert simulated.program(memory_limits.reads, str(cgroup)) == str((0, 4 * GIB, 3 * GIB))
        free = simulated.program(memory_limits.sets, str(cgroup), 0, NONE)
        assert free == f"{(0, 4 * GIB, 3 * GIB)} set {(0, NONE, 3 * GIB)}"
        assert allocated(simulated, cgroup / "two", "30GiB") == ["allocated"]


def test_processes_of_a_limited_group_see_a_smaller_gpu(tmp_path: Path, cgroup: Path) -> None:
    simulated = node(tmp_path)
    with holding(simulated, cgroup / "one", "3GiB"), holding(simulated, cgroup / "two", "5GiB"):
        whole, limited = simulated.program(memory_limits.joins, str(cgroup / "one"), 4 * GIB).splitlines()
        by_cuda = simulated.run(joining(cgroup / "one", PROBE)).stdout
    assert whole == f"{40 * GIB} {8 * GIB} {32 * GIB}"
    assert limited == f"{4 * GIB} {3 * GIB} {1 * GIB}"
    assert by_cuda.endswith(f" free {1 * GIB}\n")


def test_soft_limit_is_reserved_for_its_group(tmp_path: Path, cgroup: Path) -> None:
    simulated = node(tmp_path)
    assert " set " in simulated.program(memory_limits.sets, str(cgroup / "one"), 10 * GIB, 20 * GIB)
    assert allocated(simulated, cgroup / "two", "31GiB", "30GiB") == ["refused", "allocated"]
    with holding(simulated, cgroup / "one", "4GiB"):
        assert allocated(simulated, cgroup / "two", "31GiB", "30GiB") == ["refused", "allocated"]
        assert allocated(simulated, cgroup / "one", "17GiB", "16GiB") == ["refused", "allocated"]


def test_invalid_limits_are_rejected(tmp_path: Path, cgroup: Path) -> None:
    said = node(tmp_path).program(memory_limits.senseless, str(cgroup), 41 * GIB, NONE)
    invalid, system = "NVMLError_InvalidArgument", "NVMLError_OperatingSystem"
    assert said.splitlines() == [
        f"{invalid} {invalid} {invalid}",
        f"{system} {system} {system}",
        "NVMLError_NotSupported",
        "NVMLError_NoPermission",
    ]


def test_older_drivers_lack_the_functions(tmp_path: Path) -> None:
    said = node(tmp_path, "595.91.07").program(memory_limits.sets, "/", 0, 1)
    assert set(said.split()) == {"NVMLError_FunctionNotFound"}


@pytest.mark.parametrize(("soft", "said"), [(0, "set"), (1, "NVMLError_InsufficientResources set")])
def test_a_hard_limit_ends_with_its_group_and_a_soft_one_stays(
    tmp_path: Path, cgroup: Path, soft: int, said: str
) -> None:
    assert node(tmp_path).program(memory_limits.outlives, str(cgroup), 200, soft) == said
