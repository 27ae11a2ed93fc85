"""Programs in a pod whose devices are denied to unregistered processes: the real library, arbiter and kernel. The
simulated driver opens its device file first, like the real one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.denial.kernel import RegisteredMap
from gpushare.allocation import GivenShare
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.deviceplugin.denial import kernel_node
from tests.interposer.container import BUILD, PROBE, ROOT, Container

pytestmark = pytest.mark.slow

DESCRIPTION = """
[node]
name = denial-tests
[gpu 0]
model = NVIDIA A100-SXM4-40GB
memory = 4GiB
compute-capability = 8.0
"""
ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec unshare --pid --fork --kill-child "$@"'
NVML = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"


class Pod:
    """A pod with a share of half a GiB of the only GPU."""

    def __init__(self, container: Container, kernel: kernel_node.KernelNode) -> None:
        self._container = container
        self._cgroup = kernel.container
        self.control = container.gpus / "control"

    async def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        entering = ["/bin/sh", "-c", ENTER, "sh", str(self._cgroup), *map(str, command)]
        environment = {"TEST_POD": "trainer", "TEST_CONTAINER": "main"}
        # Run next to the arbiter, which is in this process.
        return await asyncio.to_thread(self._container.run, entering, environment)


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "simgpu"], check=True)
    subprocess.run(["make", "-s", "-C", ROOT / "interposer", "all"], check=True)


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    (tmp_path / "node.ini").write_text(DESCRIPTION)
    made = tmp_path / "gpus"
    subprocess.run([BUILD / "simgpu" / "simgpu", "create", tmp_path / "node.ini", made], check=True)
    os.mknod(made / "control", 0o20666, os.makedev(kernel_node.MISC, kernel_node.LOOP_CONTROL))
    return made


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A program without a loader that opens a file and prints the result."""
    subprocess.run(["gcc", "-static", "-o", tmp_path / "opens", Path(__file__).with_name("opens.c")], check=True)
    return tmp_path / "opens"


@pytest.fixture
def uuid(gpus: Path) -> str:
    (path,) = gpus.glob("gpu0*")
    return path.name.partition("-")[2]


@pytest.fixture
async def pod(kernel: kernel_node.KernelNode, short_path: Path, gpus: Path, uuid: str) -> AsyncIterator[Pod]:
    made = ArbiterNode(short_path)
    denied = kernel.opened()
    made.registered = RegisteredMap(denied.map_descriptor)
    made.registered.renew()
    made.add_pod("trainer", GivenShare(("main",), (uuid,), 50, 100, 1 << 29))
    await made.start()
    denied.attach([kernel.uid])
    yield Pod(Container(made.socket.parent, gpus), kernel)
    await made.stop()


async def test_a_cuda_program_gets_its_share(pod: Pod) -> None:
    result = await pod.run(PROBE, "--allocate", "256MiB,512MiB")
    assert result.stdout.splitlines()[1:] == ["allocated 268435456", "refused 536870912: CUDA_ERROR_OUT_OF_MEMORY"]
    (line,) = result.stderr.splitlines()
    assert line == "gpushare: 512 MiB refused: 256 of the container's 512 MiB are in use (gpushare.io/memory)"


async def test_a_program_that_only_uses_nvml_sees_its_gpu(pod: Pod) -> None:
    result = await pod.run(sys.executable, "-c", NVML)
    assert (result.stdout.strip(), result.stderr) == ("1", "")


async def test_a_static_program_gets_no_gpu(pod: Pod, static: Path) -> None:
    assert (await pod.run(static, pod.control)).stdout == "denied\n"


async def test_a_program_without_the_library_gets_no_gpu(pod: Pod) -> None:
    result = await pod.run("env", "-u", "LD_PRELOAD", PROBE, "--allocate", "1GiB")
    assert result.returncode == 1
    assert "allocated" not in result.stdout
    result = await pod.run("env", "-u", "LD_PRELOAD", sys.executable, "-c", NVML)
    assert "NVMLError" in result.stderr
