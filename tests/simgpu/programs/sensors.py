"""NVML's figures other than memory agree with each other and with the GPU's load."""

from __future__ import annotations

import ctypes
import subprocess
import time
from typing import Any

import pynvml as nvml

gpu = nvml.nvmlDeviceGetHandleByIndex


def until_busy() -> None:
    """Wait until the GPU is busy, at most as long as the program may run."""
    nvml.nvmlInit()
    while nvml.nvmlDeviceGetUtilizationRates(gpu(0)).gpu < 40:
        time.sleep(0.02)


def sensor_value(h: Any) -> dict[str, int]:
    """Return power, power limit, temperature, clocks, and the reasons for the clocks."""
    return {
        "utilisation": nvml.nvmlDeviceGetUtilizationRates(h).gpu,
        "milliwatts": nvml.nvmlDeviceGetPowerUsage(h),
        "limit": nvml.nvmlDeviceGetEnforcedPowerLimit(h),
        "degrees": nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU),
        "mhz": nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM),
        "most_mhz": nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM),
        "idle": nvml.nvmlDeviceGetCurrentClocksEventReasons(h) == nvml.nvmlClocksEventReasonGpuIdle,
        "state": nvml.nvmlDeviceGetPerformanceState(h),
    }


def sensor_values(busy: bool) -> None:
    nvml.nvmlInit()
    if busy:
        until_busy()
    print([sensor_value(gpu(0)), sensor_value(gpu(2))])


def utilisation_of_each(busy: bool) -> None:
    nvml.nvmlInit()
    h = gpu(0)
    if busy:
        until_busy()

    def parts() -> dict[int, int]:
        try:
            return {sample.pid: sample.smUtil for sample in nvml.nvmlDeviceGetProcessUtilization(h, 0)}
        except nvml.NVMLError_NotFound:
            return {}

    print([parts(), nvml.nvmlDeviceGetUtilizationRates(h).gpu])


def utilisation_after(work: list[str]) -> None:
    nvml.nvmlInit()
    subprocess.run(work, check=True, stdout=subprocess.DEVNULL)
    print([nvml.nvmlDeviceGetUtilizationRates(gpu(index)).gpu for index in (0, 1)])


def half_busy() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"any") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin_20000us") == 0
    while True:
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == cuda.cuCtxSynchronize() == 0
        time.sleep(0.02)


def utilisation_since(processes: int = 1) -> None:
    nvml.nvmlInit()
    h = gpu(0)
    while len(nvml.nvmlDeviceGetComputeRunningProcesses(h)) < processes:
        pass

    def since(seen: int) -> list[Any]:
        return nvml.nvmlDeviceGetProcessUtilization(h, seen)

    while not any(sample.smUtil for sample in since(0)):
        time.sleep(0.02)
    first = since(0)[0].timeStamp
    time.sleep(2)
    print({sample.pid: sample.smUtil for sample in since(first)})


def fields() -> None:
    nvml.nvmlInit()
    wanted = [
        nvml.NVML_FI_DEV_ECC_CURRENT,
        nvml.NVML_FI_DEV_POWER_INSTANT,
        nvml.NVML_FI_DEV_POWER_MAX_LIMIT,
        nvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        nvml.NVML_FI_DEV_RETIRED_SBE,
    ]
    values = nvml.nvmlDeviceGetFieldValues(gpu(0), wanted)
    print([value.value.uiVal if value.nvmlReturn == nvml.NVML_SUCCESS else None for value in values])


def topology() -> None:
    nvml.nvmlInit()
    cpus = nvml.nvmlDeviceGetCpuAffinity(gpu(0), 16)
    bar1 = nvml.nvmlDeviceGetBAR1MemoryInfo(gpu(0))
    fabric = nvml.c_nvmlGpuFabricInfo_v3_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu(0), ctypes.byref(fabric))
    print([[bin(word).count("1") for word in cpus], [bar1.bar1Total, bar1.bar1Free], fabric.state])


def fans() -> None:
    nvml.nvmlInit()
    try:
        print((nvml.nvmlDeviceGetNumFans(gpu(0)), nvml.nvmlDeviceGetFanSpeed(gpu(0))))
    except nvml.NVMLError_NotSupported:
        print(None)


def readings_of_a_mig_device() -> None:
    nvml.nvmlInit()
    h = gpu(0)
    counts = [nvml.nvmlDeviceGetMaxMigDeviceCount(h)]
    nvml.nvmlDeviceSetMigMode(h, 1)
    counts.append(nvml.nvmlDeviceGetMaxMigDeviceCount(h))
    profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(h, 0)
    instance = nvml.nvmlDeviceCreateGpuInstance(h, profile.id)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    try:
        nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetMigDeviceHandleByIndex(h, 0))
    except nvml.NVMLError_NotSupported:
        print([*counts, "none"])
