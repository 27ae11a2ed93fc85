"""The real pynvml reads the simulated node like a real one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
import time
from typing import Any

import pynvml as nvml

gpu = nvml.nvmlDeviceGetHandleByIndex


def inventory() -> None:
    nvml.nvmlInit()

    def describe(h: Any) -> list[Any]:
        try:
            mig = nvml.nvmlDeviceGetMigMode(h)
        except nvml.NVMLError_NotSupported:
            mig = None
        return [
            nvml.nvmlDeviceGetIndex(h),
            nvml.nvmlDeviceGetMinorNumber(h),
            nvml.nvmlDeviceGetName(h),
            nvml.nvmlDeviceGetMemoryInfo(h).total,
            nvml.nvmlDeviceGetCudaComputeCapability(h),
            nvml.nvmlDeviceGetPciInfo(h).busId,
            nvml.nvmlDeviceGetNumaNodeId(h),
            mig,
        ]

    gpus = [describe(gpu(i)) for i in range(nvml.nvmlDeviceGetCount())]
    print(json.dumps([nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion(), gpus]))


def processes(index: int) -> None:
    nvml.nvmlInit()
    print([(p.pid, p.usedGpuMemory) for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu(index))])


def numbers() -> None:
    nvml.nvmlInit()
    for i in range(nvml.nvmlDeviceGetCount()):
        h = gpu(i)
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(h))) == i
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(h).busId)) == i
        print(nvml.nvmlDeviceGetIndex(h), nvml.nvmlDeviceGetMinorNumber(h))


def nearness() -> None:
    nvml.nvmlInit()

    def near(a: int, b: int) -> int:
        return nvml.nvmlDeviceGetTopologyCommonAncestor(gpu(a), gpu(b))

    print(near(0, 0), near(0, 1), near(2, 3), near(0, 2))

    def linked(a: int, b: int) -> int:
        return nvml.nvmlDeviceGetP2PStatus(gpu(a), gpu(b), nvml.NVML_P2P_CAPS_INDEX_NVLINK)

    print(linked(0, 1) == nvml.NVML_P2P_STATUS_OK, linked(2, 3) == nvml.NVML_P2P_STATUS_OK)
    print(nvml.nvmlDeviceGetNvLinkState(gpu(0), 0), nvml.nvmlDeviceGetNvLinkState(gpu(0), 1))
    print(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), 0).busId)


def beside_cuda() -> None:
    nvml.nvmlInit()
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 == cuda.cuCtxSetCurrent(context)
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
    for _ in range(2):
        listed = nvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))
        assert [(p.pid, p.usedGpuMemory) for p in listed] == [(os.getpid(), 1 << 30)]
        nvml.nvmlShutdown()
        nvml.nvmlInit()
    print("ready", flush=True)
    input()


def events_of_four() -> None:
    nvml.nvmlInit()
    events = nvml.nvmlEventSetCreate()
    kinds = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
    for i in range(4):
        nvml.nvmlDeviceRegisterEvents(gpu(i), kinds, events)
    print("registered", flush=True)
    for _ in range(4):
        event = nvml.nvmlEventSetWait_v2(events, 10000)
        print(nvml.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData, flush=True)
    try:
        nvml.nvmlEventSetWait_v2(events, 30)
    except nvml.NVMLError_Timeout:
        print("nothing more")
    print(nvml.nvmlDeviceGetTotalEccErrors(gpu(2), nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC))


def sizes() -> None:
    nvml.nvmlInit()
    nvml.nvmlEventSetCreate()
    print(nvml.nvmlDeviceGetCount())
    for i in range(2):
        try:
            print(nvml.nvmlDeviceGetMemoryInfo(gpu(i)).total)
        except nvml.NVMLError_GpuIsLost:
            print("lost")


def waits_beyond_a_loss(simgpu_command: str, gpus: str) -> None:
    nvml.nvmlInit()
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(gpu(0), nvml.nvmlEventTypeXidCriticalError, events)
    subprocess.run([simgpu_command, "fail", gpus, "0", "lost"], check=True)
    print(nvml.nvmlEventSetWait_v2(events, 5000).eventData)
    try:
        nvml.nvmlEventSetWait_v2(events, 60_000)
    except nvml.NVMLError_GpuIsLost:
        print("lost")


def waits_in_a_loop(simgpu_command: str, gpus: str) -> None:
    nvml.nvmlInit()

    def simgpu(*words: str) -> None:
        subprocess.run([simgpu_command, words[0], gpus, *words[1:]], check=True)

    events = nvml.nvmlEventSetCreate()
    for i in range(2):
        nvml.nvmlDeviceRegisterEvents(gpu(i), nvml.nvmlEventTypeXidCriticalError, events)

    def asked(timeout_ms: int) -> int | str:
        try:
            return nvml.nvmlEventSetWait_v2(events, timeout_ms).eventData
        except nvml.NVMLError as error:
            return type(error).__name__

    simgpu("fail", "0", "lost")
    print(asked(60_000), asked(60_000))
    began = time.monotonic()
    print(asked(50), asked(50), time.monotonic() - began >= 0.1)
    threading.Timer(0.05, simgpu, ("fail", "1", "xid=48")).start()
    print(asked(60_000))
    simgpu("heal", "0")
    print(asked(10))
