"""Other projects' programs that run on simulated GPUs, and what they show; docs/compatibility.md is generated from
this.

To add a program, add a row to the tuple of its tests, the way to start it in their module, and run `make docs`. The
tests are parametrized by these tuples.
"""

from __future__ import annotations

import dataclasses
from typing import Final

# The GPU and the share that all programs see, and the memory that a program in the share holds meanwhile.
MODEL: Final = "NVIDIA A100-SXM4-40GB"
SHARE_GIB: Final = 4
HELD_MIB: Final = 1538

NOT_TRIED: Final = "not tried yet"
DEBIAN: Final = "Debian 12"


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """A program.

    source: where it comes from; for PyPI the lock has the version, otherwise it is given here. alone, shared: what it
    shows of a simulated GPU alone, and in a share. hardware: the same on a real GPU. besides: remarks for the reader.
    """

    name: str
    source: str
    alone: str
    shared: str
    version: str = ""
    lock: str = "requirements.lock"
    hardware: str = NOT_TRIED
    besides: str = ""


# Programs that use NVML: tests/clients/test_nvml_clients.py.
NVML: Final = (
    Client(
        "nvidia-smi",
        DEBIAN,
        version="535",
        alone="1538MiB / 40960MiB",
        shared="1538MiB / 4096MiB",
        besides="its list of processes and `topo -m` use private calls that are not simulated",
    ),
    Client("nvtop", DEBIAN, version="3.0", alone="1.502Gi/40.000Gi", shared="1.502Gi/4.000Gi"),
    Client("nvitop", "PyPI", alone="1538MiB / 40.00GiB", shared="1538MiB / 4096MiB"),
    Client("gpustat", "PyPI", alone="1538 / 40960 MB", shared="1538 / 4096 MB"),
    Client(
        "py3nvml", "PyPI", alone="1538MiB / 40960MiB", shared="1538MiB / 4096MiB", besides="its program is `py3smi`"
    ),
)

_COMPILERS: Final = "tests/clients/cuda/compilers.lock"
_PYTORCH: Final = "tests/frameworks/pytorch.lock"

# Programs that compile, launch and allocate: tests/clients/cuda; PyTorch: tests/frameworks.
CUDA: Final = (
    Client("numba-cuda", "PyPI", alone="40 GiB", shared="4 GiB", lock=_COMPILERS),
    Client(
        "nvidia-cuda-nvrtc-cu12",
        "PyPI",
        alone="40 GiB",
        shared="4 GiB",
        lock=_COMPILERS,
        besides="with `cuda-bindings`",
    ),
    Client(
        "torch",
        "PyPI",
        alone="40 GiB",
        shared="4 GiB",
        lock=_PYTORCH,
        besides="all three allocators, graphs, training, several processes; simulated with a substitute for the CUDA runtime,"
        " without cuBLAS, cuDNN and NCCL: `make test-frameworks`",
    ),
)

ALL: Final = (*NVML, *CUDA)
