"""MIG on simulated GPUs, through the real pynvml and programs that use CUDA."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import pynvml as nvml

gpu = nvml.nvmlDeviceGetHandleByIndex


def make(index: int, profile: int, start: int, parts: tuple[int, ...] = (3,)) -> Any:
    place = nvml.c_nvmlGpuInstancePlacement_t(start, 4)
    instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(index), profile, ctypes.byref(place))
    for part in parts:
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, part)
    return instance


def uuid(index: int, number: int) -> str:
    return nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(index), number))


def error(function: Callable[..., object], *arguments: object) -> str:
    try:
        function(*arguments)
    except nvml.NVMLError as raised:
        return type(raised).__name__
    return "none"


def cut_into_halves() -> None:
    nvml.nvmlInit()
    nvml.nvmlDeviceSetMigMode(gpu(0), 1)
    make(0, 9, 0, (2,))
    make(0, 9, 4, (2,))


def halves() -> None:
    cut_into_halves()
    print(uuid(0, 0), uuid(0, 1))


def unequal_halves() -> None:
    """Cut GPU 0 into a 4g and a 3g, and print their UUIDs with their bytes."""
    nvml.nvmlInit()
    nvml.nvmlDeviceSetMigMode(gpu(0), 1)
    make(0, 5, 0)
    make(0, 9, 4, (2,))
    for number in (0, 1):
        device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), number)
        print((nvml.nvmlDeviceGetUUID(device), nvml.nvmlDeviceGetMemoryInfo(device).total))


def takes_the_mode() -> None:
    nvml.nvmlInit()
    print(nvml.nvmlDeviceGetMigMode(gpu(0)), nvml.nvmlDeviceSetMigMode(gpu(0), 1), nvml.nvmlDeviceGetMigMode(gpu(0)))
    print(error(nvml.nvmlDeviceSetMigMode, gpu(2), 1), error(nvml.nvmlDeviceGetMigMode, gpu(2)))
    print(error(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, gpu(1), 9))


def looks_and_destroys() -> None:
    nvml.nvmlInit()
    for number in (0, 1):
        mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), number)
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        sizes = nvml.nvmlDeviceGetAttributes(mig)
        print(
            nvml.nvmlDeviceGetName(mig),
            nvml.nvmlDeviceGetMemoryInfo(mig).total >> 20,
            nvml.nvmlDeviceGetIndex(parent),
            nvml.nvmlDeviceGetGpuInstanceId(mig),
            nvml.nvmlDeviceGetComputeInstanceId(mig),
            sizes.multiprocessorCount,
            nvml.nvmlDeviceIsMigDeviceHandle(mig).value,
            nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid(0, number))),
        )
    print(error(uuid, 0, 2), error(uuid, 1, 0))
    instance = nvml.nvmlDeviceGetGpuInstanceById(gpu(0), 1)
    print(error(nvml.nvmlGpuInstanceDestroy, instance))
    mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0)
    nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    nvml.nvmlGpuInstanceDestroy(instance)
    print(error(nvml.nvmlDeviceGetMemoryInfo, mig), error(uuid, 0, 1))


def what_fits() -> None:
    cut_into_halves()
    room = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity
    print([room(gpu(0), kind) for kind in (19, 14, 9, 5, 0)])
    print(error(make, 0, 9, 0), error(make, 0, 14, 6), error(make, 0, 77, 0))
    part = nvml.nvmlGpuInstanceCreateComputeInstance
    print(error(part, nvml.nvmlDeviceGetGpuInstanceById(gpu(0), 1), 0))
    nvml.nvmlDeviceSetMigMode(gpu(1), 1)
    for _ in range(7):
        part(nvml.nvmlDeviceCreateGpuInstance(gpu(1), 19), 0)
    print([room(gpu(1), kind) for kind in (19, 14, 20)], error(nvml.nvmlDeviceCreateGpuInstance, gpu(1), 19))


def instances_in_use() -> None:
    nvml.nvmlInit()
    print([(p.gpuInstanceId, p.computeInstanceId) for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))])
    for number in (0, 1):
        mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), number)
        print(len(nvml.nvmlDeviceGetComputeRunningProcesses(mig)), nvml.nvmlDeviceGetMemoryInfo(mig).used >> 20)
    instance = nvml.nvmlDeviceGetGpuInstanceById(gpu(0), 1)
    print(error(nvml.nvmlComputeInstanceDestroy, nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)))
    print(nvml.nvmlDeviceSetMigMode(gpu(0), 0) == nvml.NVML_ERROR_IN_USE, nvml.nvmlDeviceGetMigMode(gpu(0)))


def cuts_as_nobody() -> None:
    os.setuid(65534)
    nvml.nvmlInit()
    print(error(nvml.nvmlDeviceSetMigMode, gpu(0), 1))
