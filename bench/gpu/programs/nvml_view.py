"""Ask for this program's GPU memory in several ways, while it holds some.

    python -m bench.gpu.programs.nvml_view BYTES   in the root of a checkout

Allocate BYTES with cuMemAlloc and print a JSON object: for each way, total, used and free bytes, or "error". NVML also
reports the number of processes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
SECONDS = 30


def hold(count: int) -> None:
    """Allocate memory in the primary context, which frameworks use too."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_ulonglong()
    for name, *arguments in (
        ("cuInit", 0),
        ("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0),
    ):
        _check(name, getattr(driver, name)(*arguments))
    _check("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))
    _check("cuMemAlloc", driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(count)))


def _check(name: str, result: int) -> None:
    if result != 0:
        raise SystemExit(f"{name}: {result}")


def by_driver() -> dict[str, object]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    _check("cuMemGetInfo", driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return {"total": total.value, "used": total.value - free.value, "free": free.value}


def by_pynvml() -> dict[str, object]:
    pynvml: Any = importlib.import_module("pynvml")

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    own = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
    return {
        "total": memory.total,
        "used": memory.used,
        "free": memory.free,
        "processes": len(processes),
        "own_used": own[0] if own else None,
    }


def by_nvidia_smi() -> dict[str, object]:
    if shutil.which("nvidia-smi") is None:
        raise FileNotFoundError("there is no nvidia-smi on PATH")
    which = ["nvidia-smi", f"--id={os.environ['CUDA_VISIBLE_DEVICES']}", "--format=csv,noheader,nounits"]
    total, used, free = _ask([*which, "--query-gpu=memory.total,memory.used,memory.free"])[0]
    processes = _ask([*which, "--query-compute-apps=pid,used_memory"])
    return {"total": int(total) * MIB, "used": int(used) * MIB, "free": int(free) * MIB, "processes": len(processes)}


def _ask(command: list[str]) -> list[list[str]]:
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout.splitlines()
    return [line.split(", ") for line in lines if line.strip()]


def by_torch() -> dict[str, object]:
    import torch

    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0).total_memory
    return {"total": total, "used": total - free, "free": free, "properties_total": properties}


WAYS: dict[str, Callable[[], dict[str, object]]] = {
    "cuMemGetInfo": by_driver,
    "pynvml": by_pynvml,
    "nvidia-smi": by_nvidia_smi,
    "torch.cuda.mem_get_info": by_torch,
}


def main(count: int) -> None:
    hold(count)
    seen: dict[str, dict[str, object]] = {}
    for name, ask in WAYS.items():
        try:
            seen[name] = ask()
        except Exception as error:
            seen[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    print(json.dumps(seen))


if __name__ == "__main__":
    main(int(sys.argv[1]))
