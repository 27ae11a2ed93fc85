"""The GPU that is measured, as NVML describes it: a real one of this machine, or a simulated one for a dry run.

By ctypes, so that nothing needs to be installed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = ROOT / "build" / "simgpu"
DESCRIPTION = (
    "[node]\nname = dry-run\n[gpu 0]\nmodel = NVIDIA A100-SXM4-40GB\nmemory = 40GiB\ncompute-capability = 8.0\n"
)
_NAME_LENGTH = 96


class NoGpuError(Exception):
    """There is nothing to measure; the message says why."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU, and how a program on it finds the driver."""

    model: str
    uuid: str
    memory_bytes: int
    driver: str
    cuda: str
    simulated: bool
    environment: Mapping[str, str]
    _nvml: ctypes.CDLL
    _handle: ctypes.c_void_p

    def used_bytes(self) -> int:
        """What is in use on the GPU, by all processes and by the driver."""
        memory = _Memory()
        _check("nvmlDeviceGetMemoryInfo", self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)))
        return int(memory.used)

    def describe(self) -> dict[str, str]:
        """For the head of a result."""
        with Path("/proc/cpuinfo").open() as lines:
            processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
        return {
            "gpu": self.model + (" (simulated)" if self.simulated else ""),
            "memory": f"{self.memory_bytes / (1 << 30):.1f} GiB",
            "driver": self.driver,
            "cuda": self.cuda,
            "processor": f"{processor}, {os.cpu_count()} cores",
            "kernel": platform.release(),
        }


def real() -> Machine:
    """The first GPU of this machine. Raises NoGpuError."""
    kept = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_HOME")
    environment = {name: os.environ.get(name, "") for name in kept}
    return _open("libnvidia-ml.so.1", environment, simulated=False)


def simulated(directory: Path) -> Machine:
    """A simulated GPU, made in `directory`; the drivers are built if need be."""
    subprocess.run(["make", "-s", "-C", ROOT / "simgpu"], check=True)
    description = directory / "node.ini"
    description.write_text(DESCRIPTION)
    gpus = directory / "gpus"
    subprocess.run([SIMULATED / "simgpu", "create", description, gpus], check=True)
    environment = {"SIMGPU_DIR": str(gpus), "LD_LIBRARY_PATH": str(SIMULATED), "HOME": str(directory), "PYTHONPATH": ""}
    os.environ["SIMGPU_DIR"] = str(gpus)  # for NVML in this process
    return _open(str(SIMULATED / "libnvidia-ml.so.1"), environment, simulated=True)


def _open(library: str, environment: dict[str, str], *, simulated: bool) -> Machine:
    try:
        nvml = ctypes.CDLL(library)
        _check("nvmlInit", nvml.nvmlInit_v2())
    except OSError as error:
        raise NoGpuError(f"there is no NVIDIA driver on this machine ({error})") from error
    handle = ctypes.c_void_p()
    _check("nvmlDeviceGetHandleByIndex", nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)))
    memory, cuda = _Memory(), ctypes.c_int()
    _check("nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))
    _check("nvmlSystemGetCudaDriverVersion", nvml.nvmlSystemGetCudaDriverVersion(ctypes.byref(cuda)))
    uuid = _text(nvml.nvmlDeviceGetUUID, handle)
    return Machine(
        model=_text(nvml.nvmlDeviceGetName, handle),
        uuid=uuid,
        memory_bytes=memory.total,
        driver=_text(nvml.nvmlSystemGetDriverVersion),
        cuda=f"{cuda.value // 1000}.{cuda.value % 1000 // 10}",
        simulated=simulated,
        environment={**environment, "CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        _nvml=nvml,
        _handle=handle,
    )


def _text(function: Any, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_NAME_LENGTH)
    _check("NVML", function(*arguments, buffer, _NAME_LENGTH))
    return buffer.value.decode()


def _check(what: str, result: int) -> None:
    if result != 0:
        raise NoGpuError(f"{what} failed with NVML error {result}: look at what nvidia-smi says")
