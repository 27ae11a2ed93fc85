"""The real pynvml reads the simulated node as it reads a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.simgpu.conftest import DRIVERS, PROBE, Node, finishing

GIB = 1 << 30


def test_an_inventory_is_read(node: Node) -> None:
    printed = node.nvml("""
import json
def describe(h):
    try:
        mig = nvml.nvmlDeviceGetMigMode(h)
    except nvml.NVMLError_NotSupported:
        mig = None
    return [nvml.nvmlDeviceGetIndex(h), nvml.nvmlDeviceGetMinorNumber(h), nvml.nvmlDeviceGetName(h),
            nvml.nvmlDeviceGetMemoryInfo(h).total, nvml.nvmlDeviceGetCudaComputeCapability(h),
            nvml.nvmlDeviceGetPciInfo(h).busId, nvml.nvmlDeviceGetNumaNodeId(h), mig]
print(json.dumps([nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion(),
                  [describe(gpu(i)) for i in range(nvml.nvmlDeviceGetCount())]]))
""")
    driver, cuda, gpus = json.loads(printed)
    assert (driver, cuda) == ("550.54.15", 12040)
    a100 = ["NVIDIA A100-SXM4-80GB", 80 * GIB, [8, 0]]
    l4 = ["NVIDIA L4", 24 * GIB, [8, 9]]
    assert gpus == [
        [0, 0, *a100, "00000000:07:00.0", 0, [0, 0]],
        [1, 1, *a100, "00000000:08:00.0", 0, [0, 0]],
        [2, 2, *l4, "00000000:81:00.0", 1, None],
        [3, 3, *l4, "00000000:82:00.0", 1, None],
    ]


def test_a_container_sees_the_gpus_it_was_given_numbered_from_0(node: Node) -> None:
    for path in node.directory.glob("gpu[02]-*"):
        path.unlink()
    printed = node.nvml("""
for i in range(nvml.nvmlDeviceGetCount()):
    h = gpu(i)
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(h))) == i
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(h).busId)) == i
    print(nvml.nvmlDeviceGetIndex(h), nvml.nvmlDeviceGetMinorNumber(h))
""")
    assert printed.splitlines() == ["0 1", "1 3"]


def test_without_gpus_there_is_no_driver(node: Node) -> None:
    for path in node.directory.iterdir():
        path.unlink()
    result = node.run([sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"])
    assert "NVMLError_DriverNotLoaded" in result.stderr


def test_nearness_follows_the_description(node: Node) -> None:
    printed = node.nvml("""
near = lambda a, b: nvml.nvmlDeviceGetTopologyCommonAncestor(gpu(a), gpu(b))
print(near(0, 0), near(0, 1), near(2, 3), near(0, 2))
linked = lambda a, b: nvml.nvmlDeviceGetP2PStatus(gpu(a), gpu(b), nvml.NVML_P2P_CAPS_INDEX_NVLINK)
print(linked(0, 1) == nvml.NVML_P2P_STATUS_OK, linked(2, 3) == nvml.NVML_P2P_STATUS_OK)
print(nvml.nvmlDeviceGetNvLinkState(gpu(0), 0), nvml.nvmlDeviceGetNvLinkState(gpu(0), 1))
print(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), 0).busId)
""")
    assert printed.splitlines() == ["0 10 40 50", "True False", "1 0", "00000000:08:00.0"]


def test_processes_are_listed_with_their_memory_and_gone_when_dead(node: Node) -> None:
    code = "print([(p.pid, p.usedGpuMemory) for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu(2))])"
    with finishing(node.held("--device", "2", "--allocate", "3GiB,1")) as process:
        assert node.nvml(code) == str([(process.pid, 3 * GIB + 1)])
        assert node.nvml("print(nvml.nvmlDeviceGetMemoryInfo(gpu(2)).used)") == str(3 * GIB + 1)
    assert node.nvml(code) == "[]"
    assert node.nvml("print(nvml.nvmlDeviceGetMemoryInfo(gpu(2)).used)") == "0"


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace is made by root")
def test_a_pid_is_what_it_is_in_the_asking_namespace(node: Node) -> None:
    code = "print([p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))])"
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with finishing(node.start([*inside, PROBE, "--allocate", "1GiB", "--hold", "60"])) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("holding"):
            assert process.poll() is None
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        assert node.nvml(code) == str([int(children.stdout)]), "the host sees the container's process"
        prelude = "import pynvml as nvml\nnvml.nvmlInit()\ngpu = nvml.nvmlDeviceGetHandleByIndex\n"
        other = node.run([*inside, sys.executable, "-c", prelude + code])
        assert other.stdout == "[]\n", "another container does not"


def test_nvml_in_a_process_that_uses_cuda_changes_nothing(node: Node) -> None:
    # POSIX locks go when any descriptor of the file is closed: the two libraries must not do that to each other.
    code = """
import ctypes, os
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
"""
    prelude = "import pynvml as nvml\nnvml.nvmlInit()\ngpu = nvml.nvmlDeviceGetHandleByIndex\n"
    with finishing(node.start([sys.executable, "-c", prelude + code])) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert node.nvml("print(nvml.nvmlDeviceGetMemoryInfo(gpu(0)).used)") == str(GIB)


def test_a_failure_arrives_as_an_event(node: Node) -> None:
    code = """
import json
events = nvml.nvmlEventSetCreate()
for i in range(4):
    nvml.nvmlDeviceRegisterEvents(gpu(i), nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError, events)
print("registered", flush=True)
for _ in range(4):
    event = nvml.nvmlEventSetWait_v2(events, 10000)
    print(nvml.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData, flush=True)
try:
    nvml.nvmlEventSetWait_v2(events, 30)
except nvml.NVMLError_Timeout:
    print("nothing more")
print(nvml.nvmlDeviceGetTotalEccErrors(gpu(2), nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC))
"""
    node.simgpu("fail", node.directory, "0", "xid=13")  # before anyone listens
    prelude = "import pynvml as nvml\nnvml.nvmlInit()\ngpu = nvml.nvmlDeviceGetHandleByIndex\n"
    with finishing(node.start([sys.executable, "-c", prelude + code])) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "registered\n"
        assert node.simgpu("fail", node.directory, "1", "xid=31").returncode == 0
        assert node.simgpu("fail", node.directory, "2", "ecc").returncode == 0
        assert node.simgpu("fail", node.directory, "3", "xid=63").returncode == 0
        output, errors = process.communicate(timeout=15)
    arrived = output.splitlines()
    assert sorted(arrived[:4]) == ["1 8 31", "2 2 0", "2 8 48", "3 8 63"], errors
    assert arrived[4:] == ["nothing more", "1"]


@pytest.mark.parametrize("how", ["lost", "xid=79"])
def test_a_lost_gpu_is_lost_until_it_is_healed(node: Node, how: str) -> None:
    code = """
events = nvml.nvmlEventSetCreate()
print(nvml.nvmlDeviceGetCount())
for i in range(2):
    try:
        print(nvml.nvmlDeviceGetMemoryInfo(gpu(i)).total)
    except nvml.NVMLError_GpuIsLost:
        print("lost")
"""
    assert node.simgpu("fail", node.directory, "0", how).returncode == 0
    assert node.nvml(code).splitlines() == ["4", "lost", str(80 * GIB)]
    assert node.run([PROBE]).returncode == 1
    assert node.simgpu("heal", node.directory, "0").returncode == 0
    assert node.nvml(code).splitlines() == ["4", str(80 * GIB), str(80 * GIB)]


def test_a_wait_ends_when_a_gpu_is_lost_after_its_event(node: Node) -> None:
    printed = node.nvml(f"""
import subprocess
events = nvml.nvmlEventSetCreate()
nvml.nvmlDeviceRegisterEvents(gpu(0), nvml.nvmlEventTypeXidCriticalError, events)
subprocess.run([{str(DRIVERS / "simgpu")!r}, "fail", {str(node.directory)!r}, "0", "lost"], check=True)
print(nvml.nvmlEventSetWait_v2(events, 5000).eventData)
try:
    nvml.nvmlEventSetWait_v2(events, 60_000)
except nvml.NVMLError_GpuIsLost:
    print("lost")
""")
    assert printed.splitlines() == ["79", "lost"]


def test_a_loop_without_a_pause_does_not_spin_over_a_lost_gpu_and_hears_of_the_others(node: Node) -> None:
    printed = node.nvml(f"""
import subprocess, threading, time
def simgpu(*words):
    subprocess.run([{str(DRIVERS / "simgpu")!r}, words[0], {str(node.directory)!r}, *words[1:]], check=True)
events = nvml.nvmlEventSetCreate()
for i in range(2):
    nvml.nvmlDeviceRegisterEvents(gpu(i), nvml.nvmlEventTypeXidCriticalError, events)
def asked(timeout_ms):
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
""")
    lost = "NVMLError_GpuIsLost"
    assert printed.splitlines() == [f"79 {lost}", f"{lost} {lost} True", "48", "NVMLError_Timeout"]


def test_a_wrong_failure_is_refused(node: Node) -> None:
    assert "there is no such GPU here" in node.simgpu("fail", node.directory, "9", "lost").stderr
    assert "write xid=N (1 to 1000), ecc, lost or mute" in node.simgpu("fail", node.directory, "0", "xid=x").stderr
