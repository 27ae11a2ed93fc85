"""A description turns into GPUs, or into one sentence that says what to change."""

from __future__ import annotations

import pynvml as nvml

from tests.interposer.cuda_client import Cuda


def contexts() -> None:
    """Print the memory that NVML reports for this process with one context, two, one and none."""
    nvml.nvmlInit()

    def held() -> None:
        (process,) = nvml.nvmlDeviceGetComputeRunningProcesses_v3(nvml.nvmlDeviceGetHandleByIndex(0))
        print(process.usedGpuMemory)

    c = Cuda()
    held()
    context = c.made("cuCtxCreate_v2", 0, 0)
    held()
    c.check("cuCtxDestroy_v2", context)
    held()
    c.check("cuDevicePrimaryCtxReset_v2", 0)
    held()
