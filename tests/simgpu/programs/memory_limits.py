"""Memory limits by control group, as drivers from version 615 on enforce them."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml as nvml

gpu = nvml.nvmlDeviceGetHandleByIndex


def set_limits(path: str, soft: int, hard: int) -> str:
    try:
        nvml.nvmlDeviceSetMemoryLimits_v1(gpu(0), nvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(path), soft, hard))
    except nvml.NVMLError as error:
        return type(error).__name__
    return "set"


def limits(path: str) -> str | tuple[int, int, int]:
    memory_limits = nvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(path))
    try:
        nvml.nvmlDeviceGetMemoryLimits_v1(gpu(0), memory_limits)
    except nvml.NVMLError as error:
        return type(error).__name__
    return memory_limits.softLimit, memory_limits.hardLimit, memory_limits.currentUsed


def reads(cgroup: str) -> None:
    nvml.nvmlInit()
    print(limits(cgroup))


def sets(cgroup: str, soft: int, hard: int) -> None:
    nvml.nvmlInit()
    print(limits(cgroup), set_limits(cgroup, soft, hard), limits(cgroup))


def joins(cgroup: str, hard: int) -> None:
    """Print the GPU's memory before and after this process joins the limited group."""
    nvml.nvmlInit()
    set_limits(cgroup, 0, hard)
    for joined in (False, True):
        if joined:
            Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu(0))
        print(memory.total, memory.used, memory.free)


def senseless(path: str, much: int, none: int) -> None:
    nvml.nvmlInit()
    print(set_limits(path, 2, 1), set_limits(path, 0, much), set_limits(path, much, none))
    print(set_limits("/tmp", 0, 1), set_limits(path + "/gone", 0, 1), limits("/nowhere"))
    nvml.nvmlDeviceSetMigMode(gpu(0), 1)
    print(set_limits(path, 0, 1))
    nvml.nvmlDeviceSetMigMode(gpu(0), 0)
    os.seteuid(65534)
    print(set_limits(path, 0, 1))


def outlives(above: str, count: int, soft: int) -> None:
    """Limit one control group after another, each gone before the next; print what became of all."""
    nvml.nvmlInit()
    said = []
    for number in range(count):
        cgroup = Path(above, f"ended{number}")
        cgroup.mkdir()
        said.append(set_limits(str(cgroup), soft, 1 << 30))
        cgroup.rmdir()
    print(*sorted(set(said)))
