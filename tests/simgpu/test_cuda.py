"""The simulated CUDA driver: memory and time are the GPU's, for all processes together."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from tests.simgpu.conftest import DRIVERS, PROBE, ROOT, Node, finishing

GIB = 1 << 30
PRELUDE = f"import sys\nsys.path.insert(0, {str(ROOT / 'tests' / 'interposer')!r})\nfrom cuda_client import *\n"


def client(node: Node, code: str) -> str:
    result = node.run([sys.executable, "-c", PRELUDE + code])
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("how", [[], ["--direct"]], ids=["cuGetProcAddress", "dlsym"])
def test_a_gpu_is_filled_to_the_byte_and_not_further(node: Node, how: list[str]) -> None:
    result = node.run([PROBE, "--device", "2", "--fill", *how])
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == f"filled {24 * GIB}"


def test_processes_share_a_gpu_and_the_dead_hold_nothing(node: Node) -> None:
    with finishing(node.held("--allocate", "60GiB")):
        result = node.run([PROBE, "--allocate", f"{20 * GIB},1"])
        assert result.stdout.splitlines()[-2:] == [f"allocated {20 * GIB}", "refused 1: CUDA_ERROR_OUT_OF_MEMORY"]
        assert result.returncode == 1
        assert f"total {80 * GIB} free {20 * GIB}" in node.run([PROBE]).stdout
    with finishing(node.held("--allocate", "40GiB")), finishing(node.held("--allocate", "40GiB")):
        pass
    client(node, "c = Cuda()\nassert c.allocate(80 << 30)[0] == SUCCESS")


def test_memory_that_changes_hands_is_not_counted_twice(node: Node) -> None:
    whole = (
        PRELUDE
        + """
c = Cuda()
print("started", flush=True)
while True:
    result, pointer = c.allocate(80 << 30)
    if result == SUCCESS:
        c.free(pointer)
"""
    )
    with (
        finishing(node.start([sys.executable, "-c", whole])) as first,
        finishing(node.start([sys.executable, "-c", whole])) as second,
    ):
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
        most = node.nvml("print(max(nvml.nvmlDeviceGetMemoryInfo(gpu(0)).used for _ in range(20000)))")
    assert int(most) == 80 * GIB


def test_memory_is_real_and_copies_copy(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
_, first = c.allocate(79 << 30)
_, second = c.allocate(1 << 20)
data = bytes(range(256)) * 16
far = first + (78 << 30)
c.check("cuMemcpyHtoD_v2", far, data, len(data))
c.check("cuMemcpyDtoD_v2", second, far, len(data))
back = ctypes.create_string_buffer(len(data))
c.check("cuMemcpyDtoH_v2", back, second, len(data))
assert back.raw == data
assert c.free(first + 1) == 1
""",
    )


def test_one_physical_memory_may_be_mapped_twice(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
handle, address = ctypes.c_uint64(), ctypes.c_uint64()
c.check("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(on_device(0)), 0)
c.check("cuMemAddressReserve", ctypes.byref(address), 4 * MIB, 0, 0, 0)
for n in range(2):
    c.check("cuMemMap", address.value + n * 2 * MIB, 2 * MIB, 0, handle.value, 0)
access = (ctypes.c_int * 3)(1, 0, 3)
c.check("cuMemSetAccess", address.value, 4 * MIB, access, 1)
c.check("cuMemcpyHtoD_v2", address.value, b"hello", 5)
back = ctypes.create_string_buffer(5)
c.check("cuMemcpyDtoH_v2", back, address.value + 2 * MIB, 5)
assert back.raw == b"hello"
c.check("cuMemRelease", handle.value)
assert c.info()[0] == c.info()[1] - 2 * MIB
c.check("cuMemUnmap", address.value, 4 * MIB)
assert c.info()[0] == c.info()[1]
c.check("cuMemAddressFree", address.value, 4 * MIB)
""",
    )


def test_a_pool_keeps_what_its_threshold_allows(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
pool = c.default_pool()
used = lambda: (c.info()[1] - c.info()[0]) // MIB
wait = lambda: c.check("cuCtxSynchronize")
def attribute(which):
    value = ctypes.c_uint64()
    c.check("cuMemPoolGetAttribute", pool, which, ctypes.byref(value))
    return value.value // MIB
c.check("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(40 * MIB)))
_, pointer = c.allocate(100 * MIB, "cuMemAllocAsync", 0)
assert used() == 128
assert (attribute(5), attribute(7)) == (128, 100)
c.check("cuMemFreeAsync", pointer, 0)
assert used() == 128
wait()
assert used() == 64
_, pointer = c.allocate(4 * MIB, "cuMemAllocAsync", 0)
c.check("cuMemPoolTrimTo", pool, 33 * MIB)
assert used() == 64
c.check("cuMemPoolTrimTo", pool, 0)
assert used() == 32
c.check("cuMemFreeAsync", pointer, 0)
c.check("cuMemPoolTrimTo", pool, 0)
assert used() == 0
assert (attribute(6), attribute(8)) == (128, 100)
""",
    )


def test_what_a_stream_frees_another_has_when_it_has_come_there(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
used = lambda: (c.info()[1] - c.info()[0]) // MIB
kernel, one, other = c.kernel("spin_200ms"), c.made("cuStreamCreate", 0), c.made("cuStreamCreate", 0)
_, pointer = c.allocate(32 * MIB, "cuMemAllocAsync", one)
c.launch(kernel, one)
c.check("cuMemFreeAsync", pointer, one)
_, pointer = c.allocate(32 * MIB, "cuMemAllocAsync", one)
assert used() == 32
c.check("cuMemFreeAsync", pointer, one)
_, second = c.allocate(16 * MIB, "cuMemAllocAsync", other)
assert used() == 64
c.check("cuMemFreeAsync", second, other)
c.check("cuStreamSynchronize", one)
assert used() == 0
""",
    )


def test_memory_that_is_shared_is_one(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
handle, other, address, word = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint32(7)
c.check("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(on_device(0)), 0)
assert c.call("cuMemExportToShareableHandle", ctypes.byref(word), handle.value, 1, 0) != SUCCESS, "not made for it"
c.check("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(on_device(0, 1)), 0)
descriptor = ctypes.c_int()
c.check("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle.value, 1, 0)
c.check("cuMemImportFromShareableHandle", ctypes.byref(other), descriptor.value, 1)
assert c.call("cuMemImportFromShareableHandle", ctypes.byref(other), 0, 1) != SUCCESS
assert c.info()[1] - c.info()[0] == 4 * MIB
c.check("cuMemAddressReserve", ctypes.byref(address), 4 * MIB, 0, 0, 0)
for at, each in ((0, handle), (2 * MIB, other)):
    c.check("cuMemMap", address.value + at, 2 * MIB, 0, each.value, 0)
class Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", ctypes.c_int))
c.check("cuMemSetAccess", address.value, 4 * MIB, ctypes.byref(Access(Location(1, 0), 3)), 1)
c.check("cuMemcpyHtoD_v2", address.value, ctypes.byref(ctypes.c_uint32(42)), 4)
c.check("cuMemcpyDtoH_v2", ctypes.byref(word), address.value + 2 * MIB, 4)
assert word.value == 42
""",
    )


def test_kernels_of_all_processes_run_one_after_another(node: Node) -> None:
    began = time.monotonic()
    processes = [node.start([PROBE, "--kernels", "100", "--duration-us", "2000"]) for _ in range(3)]
    seconds = []
    for process in processes:
        with finishing(process):
            output, _ = process.communicate(timeout=20)
            seconds.append(float(re.findall(r"in ([\d.]+) seconds", output)[0]))
    together = time.monotonic() - began
    assert 0.6 <= together < 1.2, together
    assert max(seconds) >= 0.4
    assert node.run([PROBE, "--device", "1", "--kernels", "100", "--duration-us", "100"]).returncode == 0


def test_utilisation_is_the_busy_part_of_the_last_second(node: Node) -> None:
    busy = "print(nvml.nvmlDeviceGetUtilizationRates(gpu(0)).gpu, nvml.nvmlDeviceGetUtilizationRates(gpu(1)).gpu)"
    assert node.run([PROBE, "--kernels", "700", "--duration-us", "1000"]).returncode == 0
    first, second = map(int, node.nvml(busy).split())
    assert 40 <= first <= 100
    assert second == 0


def test_streams_and_events_follow_the_timeline(node: Node) -> None:
    client(
        node,
        """
import time
c = Cuda()
module, function, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
start, end, elapsed = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
c.check("cuModuleLoadData", ctypes.byref(module), b"")
assert c.call("cuModuleGetFunction", ctypes.byref(function), module, b"") == 500
c.check("cuModuleGetFunction", ctypes.byref(function), module, b"spin_50ms")
c.check("cuStreamCreate", ctypes.byref(stream), 1)
for event in (start, end):
    c.check("cuEventCreate", ctypes.byref(event), 0)
c.check("cuEventRecord", start, stream)
c.check("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
c.check("cuEventRecord", end, stream)
assert c.call("cuEventQuery", end) == c.call("cuStreamQuery", stream) == 600
assert c.call("cuStreamQuery", 0) == SUCCESS, "another stream has nothing to wait for"
c.check("cuLaunchKernel_ptsz", function, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
assert c.call("cuStreamQuery", 0) == SUCCESS and c.call("cuStreamQuery_ptsz", 0) == 600
c.check("cuEventSynchronize", end)
c.check("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
assert 50 <= elapsed.value < 60, elapsed.value
began = time.monotonic()
c.check("cuCtxSynchronize")
assert 0.03 < time.monotonic() - began < 0.2
""",
    )


def test_cuda_visible_devices_selects_and_orders(node: Node) -> None:
    uuids = re.findall(r"GPU-\S+", node.run([PROBE]).stdout)
    cases = {
        "2,0": [uuids[2], uuids[0]],
        uuids[1]: [uuids[1]],
        uuids[3][:12]: [uuids[3]],
        "1,9,2": [uuids[1]],
    }
    for value, expected in cases.items():
        assert re.findall(r"GPU-\S+", node.run([PROBE], {"CUDA_VISIBLE_DEVICES": value}).stdout) == expected
    assert "CUDA_ERROR_NO_DEVICE" in node.run([PROBE], {"CUDA_VISIBLE_DEVICES": "-1"}).stdout


def test_cuda_does_not_work_in_the_child_of_a_fork(node: Node) -> None:
    client(
        node,
        """
import os
c = Cuda()
assert c.allocate(1 << 30)[0] == SUCCESS
if (child := os.fork()) == 0:
    os._exit(c.call("cuInit", 0) * 10 + c.allocate(1)[0])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 33
assert c.info()[1] - c.info()[0] == 1 << 30, "its end took nothing from the parent"
""",
    )


def test_a_gpu_that_fails_stops_its_programs(node: Node) -> None:
    client(
        node,
        f"""
import subprocess
c = Cuda()
simgpu = lambda *words: subprocess.run([{str(DRIVERS / "simgpu")!r}, words[0], {str(node.directory)!r}, "0", *words[1:]])
simgpu("fail", "ecc")
assert c.allocate(1)[0] == c.call("cuCtxSynchronize") == 214
simgpu("heal")
assert c.allocate(1)[0] == SUCCESS
simgpu("fail", "lost")
assert c.allocate(1)[0] == 999
""",
    )


def test_the_form_of_a_function_follows_version_and_flags(node: Node) -> None:
    client(
        node,
        """
c = Cuda(proc=True)
d = Cuda()
forms = {
    ("cuMemAlloc", 2000, 0): "cuMemAlloc",
    ("cuMemAlloc", 3020, 0): "cuMemAlloc_v2",
    ("cuMemAlloc", 13000, PER_THREAD): "cuMemAlloc_v2",
    ("cuLaunchKernel", 4000, PER_THREAD): "cuLaunchKernel",
    ("cuLaunchKernel", 7000, PER_THREAD): "cuLaunchKernel_ptsz",
    ("cuLaunchKernel", 7000, 0): "cuLaunchKernel",
    ("cuGetProcAddress", 11030, 0): "cuGetProcAddress",
    ("cuGetProcAddress", 12000, 0): "cuGetProcAddress_v2",
}
for (name, version, flags), symbol in forms.items():
    assert c.proc_address(name, version, flags) == d.address(symbol) != None, (name, version, flags)
assert c.proc_address("cuMemAlloc_v2", 12000) is None
""",
    )


def test_it_exports_its_tables_and_nothing_else() -> None:
    tables = "".join(path.read_text() for path in (ROOT / "simgpu").glob("cuda_*.def"))
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", DRIVERS / "libcuda.so.1"], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in listed.splitlines()} == set(
        re.findall(r"^(?:ENTRY|UNSIMULATED)\((\w+),", tables, re.MULTILINE)
    )
