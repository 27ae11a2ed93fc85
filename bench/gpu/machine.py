"""The GPU to measure, as NVML describes it: a real one of this machine, or a simulated one for a dry run.

Uses NVML through ctypes, so no package has to be installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = ROOT / "build" / "simgpu"
# An H100 with a driver of 2026 and the size of its contexts.
DESCRIPTION = """[node]
name = dry-run
driver-version = 580.159.04
cuda-version = 13.0
[gpu 0]
model = NVIDIA H100 80GB HBM3
memory = 81559MiB
memory-block = 2MiB
context-memory = 528MiB
compute-capability = 9.0
"""
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
PACKAGES = (
    *("torch", "jax", "jax-cuda13-plugin", "cupy-cuda13x", "triton", "numba-cuda", "cuda-bindings", "cuda-core"),
    *("transformers", "nvidia-ml-py"),
)
# Variables of the bench's own environment that programs do not inherit.
_DROPPED = ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
_PROGRAMS = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin")  # where containers have the driver's programs
_NAME_LENGTH = 96
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_MAX_PROCESSES = 64


class NoGpuError(Exception):
    """No GPU to measure. The message says why."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        *(("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)),
        *(("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)),
    )


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

    def with_project(self) -> dict[str, str]:
        """Return the environment of a Python that imports this project."""
        path = [str(ROOT), *filter(None, [self.environment.get("PYTHONPATH")])]
        return {**self.environment, "PYTHONPATH": os.pathsep.join(path)}

    def used_bytes(self) -> int:
        """Return the memory in use on the GPU, by all processes and the driver."""
        memory = _Memory()
        _check("nvmlDeviceGetMemoryInfo", self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)))
        return int(memory.used)

    def processes(self) -> int | None:
        """Return how many processes use the GPU now; None if the driver does not report it."""
        count, listed = ctypes.c_uint(_MAX_PROCESSES), (_Process * _MAX_PROCESSES)()
        function = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3
        return count.value if function(self._handle, ctypes.byref(count), listed) == 0 else None

    def describe(self) -> dict[str, str]:
        """Return the head of a result page: all facts needed to compare its figures with others."""
        with Path("/proc/cpuinfo").open() as lines:
            processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
        mode = self._number("nvmlDeviceGetComputeMode")
        clocks = [
            "/".join(str(self._number(f"nvmlDeviceGet{which}", kind)) for which in ("ClockInfo", "MaxClockInfo"))
            for kind in (_SM_CLOCK, _MEMORY_CLOCK)
        ]
        return {
            "gpu": self.model + (" (simulated)" if self.simulated else ""),
            "memory": f"{self.memory_bytes / (1 << 30):.1f} GiB",
            "driver": self.driver,
            "cuda": self.cuda,
            "compute mode": COMPUTE_MODES[mode] if mode is not None and mode < len(COMPUTE_MODES) else str(mode),
            "clocks at the start": f"SM {clocks[0]} MHz, memory {clocks[1]} MHz (now/most)",
            "other processes on the GPU": str(self.processes()),
            "processor": f"{processor}, {os.cpu_count()} cores",
            "kernel": platform.release(),
            "python": platform.python_version(),
            "packages": _packages(),
            "commit": _commit(),
        }

    def _number(self, function: str, *arguments: int) -> int | None:
        number = ctypes.c_uint()
        result = getattr(self._nvml, function)(self._handle, *arguments, ctypes.byref(number))
        return number.value if result == 0 else None


def real() -> Machine:
    """Return the first GPU of this machine. Raises NoGpuError."""
    environment = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    path = [environment.get("PATH", os.defpath), *filter(os.path.isdir, _PROGRAMS)]
    environment["PATH"] = os.pathsep.join(path)
    return _open("libnvidia-ml.so.1", environment, simulated=False)


def simulated(directory: Path) -> Machine:
    """Create a simulated GPU and open it in this process, which then uses only its NVML."""
    environment = simulated_environment(directory)
    os.environ["SIMGPU_DIR"] = environment["SIMGPU_DIR"]
    return _open(str(SIMULATED / "libnvidia-ml.so.1"), environment, simulated=True)


def simulated_environment(directory: Path) -> dict[str, str]:
    """Create a simulated GPU in `directory`, and build its drivers if needed. Return its programs' environment."""
    subprocess.run(["make", "-s", "-C", ROOT / "simgpu"], check=True)
    description = directory / "node.ini"
    description.write_text(DESCRIPTION)
    gpus = directory / "gpus"
    subprocess.run([SIMULATED / "simgpu", "create", description, gpus], check=True)
    return {
        **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        "PATH": f"{SIMULATED}:{os.environ.get('PATH', os.defpath)}",  # with the simulated MPS daemon
        "SIMGPU_DIR": str(gpus),
        "LD_LIBRARY_PATH": str(SIMULATED),
        "HOME": str(directory),
    }


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


def _packages() -> str:
    found = []
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found) or "none of the measured ones"


def _commit() -> str:
    """Return this checkout's commit, or, in a copy without git, the digest of its C sources."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    sources = sorted(path for part in ("interposer", "bench") for path in (ROOT / part).rglob("*.?"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources if path.suffix in {".c", ".h", ".S"}))
    return f"no git here; sources {digest.hexdigest()[:12]}"


def _text(function: Any, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_NAME_LENGTH)
    _check("NVML", function(*arguments, buffer, _NAME_LENGTH))
    return buffer.value.decode()


def _check(what: str, result: int) -> None:
    if result != 0:
        raise NoGpuError(f"{what} failed with NVML error {result}: run nvidia-smi for details")
