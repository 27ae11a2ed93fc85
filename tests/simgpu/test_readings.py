"""What NVML tells of a GPU beside its memory: one figure agrees with another, and with what the GPU does."""

from __future__ import annotations

import ast
import os
import sys
from typing import Any

import pytest

from tests.simgpu.conftest import PROBE, Node, finishing

GIB = 1 << 30
BUSY = [PROBE, "--seconds", "60", "--duration-us", "1000"]
# Bounded by the time that a program has.
WAIT = """
import time
while nvml.nvmlDeviceGetUtilizationRates(gpu(0)).gpu < 40:
    time.sleep(0.02)
"""
# Power, its limit, temperature, clocks, and why they are what they are.
FEELING = """
def feeling(h):
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
"""


def answer(node: Node, code: str) -> Any:
    return ast.literal_eval(node.nvml(code))


def test_an_idle_gpu_is_cool_and_slow_and_a_busy_one_is_neither(node: Node) -> None:
    code = f"{FEELING}\nprint([feeling(gpu(0)), feeling(gpu(2))])"
    idle, _ = answer(node, code)
    with finishing(node.start(BUSY)):
        busy, other = answer(node, WAIT + code)
    assert idle == {
        "utilisation": 0,
        "milliwatts": 60_000,
        "limit": 400_000,
        "degrees": 30,
        "mhz": 210,
        "most_mhz": 1410,
        "idle": True,
        "state": 0,
    }
    assert 40 <= busy["utilisation"] <= 100
    assert idle["milliwatts"] < busy["milliwatts"] < busy["limit"]
    assert idle["degrees"] < busy["degrees"] < 85
    assert (busy["mhz"], busy["idle"]) == (busy["most_mhz"], False)
    assert (other["utilisation"], other["limit"]) == (0, 72_000)


def test_those_who_work_have_the_gpus_utilisation_between_them(node: Node) -> None:
    code = """
h = gpu(0)
def parts():
    try:
        return {one.pid: one.smUtil for one in nvml.nvmlDeviceGetProcessUtilization(h, 0)}
    except nvml.NVMLError_NotFound:
        return {}
print([parts(), nvml.nvmlDeviceGetUtilizationRates(h).gpu])
"""
    assert answer(node, code) == [{}, 0]
    with finishing(node.held("--allocate", "1MiB")) as idle, finishing(node.start(BUSY)) as one:
        parts, whole = answer(node, WAIT + code)
    assert parts[idle.pid] == 0
    assert 0 < parts[one.pid] <= 100
    assert whole >= 40


HALF_BUSY = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b"any") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin_20000us") == 0
while True:
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == cuda.cuCtxSynchronize() == 0
    time.sleep(0.02)
"""
SINCE = """
import time
h = gpu(0)
def since(seen):
    return nvml.nvmlDeviceGetProcessUtilization(h, seen)
while not any(one.smUtil for one in since(0)):
    time.sleep(0.02)
first = since(0)[0].timeStamp
time.sleep(2)
print({one.pid: one.smUtil for one in since(first)})
"""


def test_each_has_what_its_own_kernels_took(node: Node) -> None:
    with finishing(node.start([sys.executable, "-c", HALF_BUSY])) as alone:
        assert 20 < answer(node, SINCE)[alone.pid] < 70
        with finishing(node.start(BUSY)) as other:
            parts = answer(node, f"while len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))) < 2: pass\n{SINCE}")
    assert parts[alone.pid] < parts[other.pid]
    assert 60 < parts[alone.pid] + parts[other.pid] <= 102  # each is rounded


def test_a_kernel_that_nobody_looks_at_counts_while_it_runs(node: Node) -> None:
    with finishing(node.start([PROBE, "--seconds", "60", "--duration-us", "60000000"])) as one:
        assert answer(node, SINCE)[one.pid] > 90


def test_fields_are_the_same_figures_and_each_says_whether_it_is_there(node: Node) -> None:
    found = answer(
        node,
        """
wanted = [nvml.NVML_FI_DEV_ECC_CURRENT, nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_FI_DEV_POWER_MAX_LIMIT,
          nvml.NVML_FI_DEV_NVLINK_LINK_COUNT, nvml.NVML_FI_DEV_RETIRED_SBE]
values = nvml.nvmlDeviceGetFieldValues(gpu(0), wanted)
print([value.value.uiVal if value.nvmlReturn == nvml.NVML_SUCCESS else None for value in values])
""",
    )
    assert found == [1, 60_000, 400_000, 1, None]


def test_a_gpu_is_near_to_processors_and_its_memory_is_seen_through_a_window(node: Node) -> None:
    cpus, bar1, fabric = answer(
        node,
        """
import ctypes
cpus = nvml.nvmlDeviceGetCpuAffinity(gpu(0), 16)
bar1 = nvml.nvmlDeviceGetBAR1MemoryInfo(gpu(0))
fabric = nvml.c_nvmlGpuFabricInfo_v3_t()
nvml.nvmlDeviceGetGpuFabricInfoV(gpu(0), ctypes.byref(fabric))
print([[bin(word).count("1") for word in cpus], [bar1.bar1Total, bar1.bar1Free], fabric.state])
""",
    )
    assert 0 < sum(cpus) <= (os.cpu_count() or 1)
    assert bar1 == [128 * GIB, 128 * GIB]
    assert fabric == 0


def test_cards_of_data_centres_have_no_fans_and_others_do(node: Node) -> None:
    code = """
def fans(h):
    try:
        return nvml.nvmlDeviceGetNumFans(h), nvml.nvmlDeviceGetFanSpeed(h)
    except nvml.NVMLError_NotSupported:
        return None
print(fans(gpu(0)))
"""
    assert answer(node, code) is None
    path = node.directory.parent / "desktop.ini"
    path.write_text("[gpu 0]\nmodel = NVIDIA GeForce RTX 4090\nmemory = 24GiB\ncompute-capability = 8.9\n")
    assert node.simgpu("create", "--replace", path, node.directory).returncode == 0
    assert answer(node, code) == (1, 30)


@pytest.mark.parametrize("processes", ["Graphics", "MPSCompute"])
def test_nobody_draws_or_is_a_client_of_mps(node: Node, processes: str) -> None:
    with finishing(node.held("--allocate", "1MiB")):
        assert answer(node, f"print(nvml.nvmlDeviceGet{processes}RunningProcesses(gpu(0)))") == []


def test_readings_are_of_whole_gpus_and_a_gpu_that_is_not_cut_has_no_mig_devices(node: Node) -> None:
    found = answer(
        node,
        """
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
""",
    )
    assert found == [0, 7, "none"]
