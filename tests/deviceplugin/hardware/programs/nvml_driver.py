"""Programs that print what the agent's driver module returns."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from deviceplugin.hardware import nvml
from tests.deviceplugin.programs.failures import simgpu


def opens() -> None:
    nvml.Nvml()


def describes() -> None:
    for gpu in nvml.Nvml().snapshot().gpus:
        where = (gpu.compute_capability, gpu.numa_node, gpu.pci_bus_id)
        print((gpu.uuid, gpu.index, gpu.model, gpu.memory_bytes, *where, gpu.mode.value, gpu.healthy))


def numa_nodes(sys_root: str) -> None:
    print([gpu.numa_node for gpu in nvml.Nvml(sys_root=Path(sys_root)).snapshot().gpus])


def link_groups() -> None:
    print([gpu.link_group for gpu in nvml.Nvml().snapshot().gpus])


def one_is_lost_and_comes_back() -> None:
    driver = nvml.Nvml()
    for verb in (("fail", "2", "lost"), ("heal", "2")):
        simgpu(*verb)
        seen = driver.snapshot()
        print(([gpu.index for gpu in seen.gpus], [(gpu.index, gpu.reason) for gpu in seen.unreadable]))


def waits_for_failures() -> None:
    driver = nvml.Nvml()
    print(driver.wait_for_xid(0))
    for failure in (("1", "xid=94"), ("3", "lost"), ("0", "ecc")):
        simgpu("fail", *failure)
        event = driver.wait_for_xid(5)
        print((event.gpu, event.number) if event else None)


def waits_beside_a_lost_one() -> None:
    driver = nvml.Nvml()
    driver.wait_for_xid(0)
    simgpu("fail", "3", "lost")
    driver.wait_for_xid(1)
    began = time.monotonic()
    print(driver.wait_for_xid(0.3))
    print(time.monotonic() - began >= 0.3)


def one_is_mute() -> None:
    driver = nvml.Nvml()
    simgpu("fail", "1", "mute")
    driver.wait_for_xid(0)
    print(dict(driver.unwatched))
    simgpu("heal", "1")
    driver.reinitialize()
    driver.wait_for_xid(0)
    print(dict(driver.unwatched))


def reinitializes() -> None:
    driver = nvml.Nvml()
    driver.wait_for_xid(0)
    driver.reinitialize()
    print(len(driver.snapshot().gpus))
    driver.wait_for_xid(0)
    simgpu("fail", "1", "xid=94")
    event = driver.wait_for_xid(5)
    print(event and event.number)
    driver.close()
    driver.close()


def processes(pipe_directory: str | None) -> None:
    """List this process on the second GPU, as an MPS client if a pipe directory is given."""
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": pipe_directory} if pipe_directory else {}
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    context, pointer, device = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    assert cuda.cuDeviceGet(ctypes.byref(device), 1) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
    driver = nvml.Nvml()
    other, own, *_ = (gpu.uuid for gpu in driver.snapshot().gpus)
    print([(process.pid == os.getpid(), (process.memory_bytes or 0) >= 1 << 30) for process in driver.processes(own)])
    print(driver.processes(other))
    print((driver.users(own) == driver.processes(own), driver.users(other)))


def processes_of(uuid: str) -> None:
    nvml.Nvml().processes(uuid)
