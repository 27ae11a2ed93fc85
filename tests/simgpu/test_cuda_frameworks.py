"""The simulated CUDA driver as frameworks use it: attributes, kernels of any name, copies and words in streams, libraries."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interposer import cuda_headers
from tests.simgpu.conftest import COMMAND, ROOT, Node
from tests.simgpu.test_cuda import client

SIMULATED = "12.9"  # the headers that cuda_unsimulated.def is made of


def forms(kind: str) -> dict[str, tuple[str, int, bool]]:
    """Name, version and whether it is for per-thread streams, of each symbol in the driver's tables."""
    tables = "".join(path.read_text() for path in (ROOT / "simgpu").glob("cuda_*.def"))
    rows = re.findall(rf"^{kind}\((\w+), (\w+), (\d+), ([01])", tables, re.MULTILINE)
    return {symbol: (name, int(version), per_thread == "1") for symbol, name, version, per_thread in rows}


@pytest.mark.slow
def test_it_exports_all_that_a_driver_of_its_version_exports() -> None:
    try:
        names = cuda_headers.functions(SIMULATED)
    except cuda_headers.UnavailableError as error:
        if cuda_headers.in_ci():
            raise
        pytest.skip(f"{error}: connect to a package index and run again")
    assert names - {*forms("ENTRY"), *forms("UNSIMULATED")} == set()


def test_nobody_is_given_a_form_that_is_not_simulated_where_there_is_one_that_is() -> None:
    simulated = forms("ENTRY").values()
    oldest = {name: min(each[1] for each in simulated if each[0] == name) for name, _, _ in simulated}
    newer = {
        symbol
        for symbol, (name, version, per_thread) in forms("UNSIMULATED").items()
        if name in oldest and (per_thread or version >= oldest[name])
    }
    assert newer == set()


def test_a_function_that_is_not_simulated_says_so(node: Node) -> None:
    client(
        node,
        """
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuMulticastCreate(0, 0) == 3, "before cuInit"
c = Cuda()
for name in ("cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuTexObjectCreate"):
    assert c.proc_address(name, 12090) == c.address(name)
    assert c.call(name, 0, 0, 0, 0) == NOT_SUPPORTED
""",
    )


def test_every_attribute_that_cuda_knows_has_a_value(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
def attribute(number, device=0):
    value = ctypes.c_int(-7)
    return c.call("cuDeviceGetAttribute", ctypes.byref(value), number, device) or value.value
numbers = {number: attribute(number) for number in range(1, 144)}
assert all(value >= 0 for value in numbers.values())
assert numbers[17] == numbers[132] == 0, "no limit of run time, no multicast"
assert (numbers[75], numbers[76], numbers[81], numbers[97], numbers[39]) == (8, 0, 164 << 10, 163 << 10, 2048)
assert (attribute(81, 2), attribute(39, 2)) == (100 << 10, 1536), "an L4"
value = ctypes.c_int()
for number in (0, -1 & 0xffffffff, 144, 9999):
    assert c.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), 0) == 1
device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
c.check("cuDeviceGetPCIBusId", text, 32, 2)
c.check("cuDeviceGetByPCIBusId", ctypes.byref(device), text)
assert device.value == 2
assert c.call("cuDeviceGetByPCIBusId", ctypes.byref(device), b"0000:66:00.0") == 101
can = ctypes.c_int()
c.check("cuDeviceCanAccessPeer", ctypes.byref(can), 0, 1)
assert can.value == 1
""",
    )


KERNEL = """
c = Cuda()
module, function, milliseconds = c.made("cuModuleLoadData", b"image"), ctypes.c_void_p(), ctypes.c_float()
assert c.call("cuModuleGetFunction", ctypes.byref(function), module, b"") == 500
result = c.call("cuModuleGetFunction", ctypes.byref(function), module, b"_Z5scalefPf")
if result == SUCCESS:
    begin, end = c.made("cuEventCreate", 0), c.made("cuEventCreate", 0)
    c.check("cuEventRecord", begin, 0)
    for _ in range(10):
        c.launch(function)
    c.check("cuEventRecord", end, 0)
    c.check("cuCtxSynchronize")
    c.check("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
print(result, milliseconds.value)
c.check("cuModuleGetFunction", ctypes.byref(function), module, b"spin_1us")
"""


@pytest.mark.parametrize(
    ("key", "answer"), [("", 0.1), ("kernel-duration = 500us", 5), ("kernel-duration = none", None)]
)
def test_a_kernel_of_any_name_runs_as_long_as_the_description_says(
    tmp_path: Path, key: str, answer: float | None
) -> None:
    description = tmp_path / "node.ini"
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description.write_text(text.replace("[gpu 2]", f"{key}\n[gpu 2]"))
    subprocess.run([COMMAND, "create", description, tmp_path / "gpus"], check=True)
    result, milliseconds = client(Node(tmp_path / "gpus"), KERNEL).split()
    if answer is None:
        assert result == "500"
    else:
        assert result == "0"
        assert float(milliseconds) >= answer * 0.99, "ten kernels; a float has seven digits"


def test_a_kernels_duration_is_understood_or_refused(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description.write_text(text.replace("[gpu 2]", "kernel-duration = 0us\n[gpu 2]"))
    result = subprocess.run([COMMAND, "create", description, tmp_path / "gpus"], capture_output=True, text=True)
    assert result.returncode != 0
    assert 'kernel-duration = "0us" is not understood: write microseconds from 1us to 4096us' in result.stderr


def test_copies_and_fills_in_streams_do_what_they_say(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
stream, back = c.made("cuStreamCreate", 1), ctypes.create_string_buffer(64)
_, one = c.allocate(4096)
_, two = c.allocate(4096)
c.check("cuMemsetD32Async", one, ctypes.c_uint(0x04030201), 16, stream)
c.check("cuMemcpyDtoDAsync_v2", two, one, 64, stream)
c.check("cuMemsetD16_v2", two + 8, ctypes.c_ushort(0x0605), 2)
c.check("cuMemcpyAsync_ptsz", two + 16, one, 4, 0)
c.check("cuMemcpyDtoHAsync_v2", back, two, 64, stream)
assert back.raw[:20] == bytes([1, 2, 3, 4] * 2 + [5, 6] * 2 + [1, 2, 3, 4] * 2)
class Copy2D(ctypes.Structure):
    _fields_ = [(n, t) for side in ("src", "dst") for n, t in ((side + "X", ctypes.c_size_t), (side + "Y", ctypes.c_size_t),
        (side + "Type", ctypes.c_int), (side + "Host", ctypes.c_void_p), (side + "Device", ctypes.c_uint64),
        (side + "Array", ctypes.c_void_p), (side + "Pitch", ctypes.c_size_t))] + [("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]
rows = ctypes.create_string_buffer(b"abcdefghijklmnop", 16)
into = Copy2D(srcX=1, srcY=1, srcType=1, srcHost=ctypes.addressof(rows), srcPitch=4,
              dstType=2, dstDevice=one, dstPitch=8, width=2, height=3)
c.check("cuMemcpy2DAsync_v2", ctypes.byref(into), stream)
c.check("cuMemcpyDtoH_v2", back, one, 18)
assert (back.raw[0:2], back.raw[8:10], back.raw[16:18]) == (b"fg", b"jk", b"no")
assert c.call("cuMemcpy2D_v2", ctypes.byref(Copy2D(srcType=3, dstType=2, dstDevice=one, width=1, height=1))) == NOT_SUPPORTED
assert c.call("cuMemcpyHtoDAsync_v2", 0, back, 4, stream) == 1
""",
    )


def test_a_stream_waits_for_a_word_and_what_is_behind_it_waits_too(node: Node) -> None:
    client(
        node,
        """
import threading
c = Cuda()
stream, event, other = c.made("cuStreamCreate", 1), c.made("cuEventCreate", 0), c.made("cuStreamCreate", 1)
_, word = c.allocate(64)
_, copy = c.allocate(64)
c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 16)
c.check("cuMemsetD32_v2", copy, ctypes.c_uint(0), 16)
read = lambda at: ctypes.c_uint.from_address(at).value
called, kernel = [], c.kernel("k_100us")
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append((data, read(copy), threading.get_ident())))
c.check("cuStreamWaitValue32_v2", stream, word, ctypes.c_uint(7), 0)
c.check("cuMemcpyDtoDAsync_v2", copy, word, 4, stream)
c.launch(kernel, stream)
c.check("cuLaunchHostFunc", stream, function, 42)
c.check("cuStreamWriteValue64_v2", stream, word + 8, 9, 0)
c.check("cuEventRecord", event, stream)
c.check("cuStreamWaitEvent", other, event, 0)
for name, handle in (("cuStreamQuery", stream), ("cuEventQuery", event), ("cuStreamQuery", other)):
    assert c.call(name, handle) == 600, name
assert (read(copy), read(word + 8), called) == (0, 0, [])
c.check("cuStreamQuery", 0)
c.check("cuMemsetD32Async", word, ctypes.c_uint(8), 1, 0)
c.check("cuStreamSynchronize", other)
assert (read(copy), read(word + 8)) == (8, 9)
[(data, copied, thread)] = called
assert (data, copied) == (42, 8) and thread != threading.get_ident()
c.check("cuEventQuery", event)
answers = []
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(lambda *given: answers.append(given))
c.check("cuStreamAddCallback", stream, callback, 43, 0)
c.check("cuCtxSynchronize")
assert answers == [(stream.value, 0, 43)]
""",
    )


def test_a_kernel_of_a_library_runs_where_its_stream_is(node: Node) -> None:
    """And a module's only where it was loaded; in a default stream both need a context that is current."""
    client(
        node,
        """
c = Cuda(device=1)
stream = c.made("cuStreamCreate", 0)
of_module = c.kernel("spin_50ms")
library = c.made("cuLibraryLoadData", b"code", None, None, 0, None, None, 0)
kernel = c.made("cuLibraryGetKernel", library, b"spin_50ms")
context = c.made("cuDevicePrimaryCtxRetain", 1)
for device in (0, None):
    if device is None:
        c.check("cuCtxSetCurrent", None)
    else:
        c.use(device)
    arguments = (1, 1, 1, 1, 1, 1, 0, stream, None, None)
    c.check("cuLaunchKernel", kernel, *arguments)
    assert c.call("cuStreamQuery", stream) == 600
    c.check("cuStreamSynchronize", stream)
    assert c.call("cuLaunchKernel", of_module, *arguments) in (201, 400)
assert c.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 201
""",
    )


def test_a_library_has_kernels_for_every_context(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
library = c.made("cuLibraryLoadData", b"code", None, None, 0, None, None, 0)
kernel = c.made("cuLibraryGetKernel", library, b"spin_50us")
assert kernel.value == c.made("cuLibraryGetKernel", library, b"spin_50us").value
name, count = ctypes.c_char_p(), ctypes.c_uint()
c.check("cuKernelGetName", ctypes.byref(name), kernel)
c.check("cuLibraryGetKernelCount", ctypes.byref(count), library)
assert (name.value, count.value) == (b"spin_50us", 1)
for device in (0, 1):
    c.use(device)
    function = c.made("cuKernelGetFunction", kernel)
    c.launch(function)
    c.check("cuCtxSynchronize")
value, grid, block = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
c.check("cuFuncGetAttribute", ctypes.byref(value), 0, function)
assert value.value == 1024
c.check("cuFuncSetAttribute", function, 8, ctypes.c_int(100000))
c.check("cuKernelGetAttribute", ctypes.byref(value), 8, kernel, 0)
assert value.value == 100000
c.check("cuOccupancyMaxPotentialBlockSize", ctypes.byref(grid), ctypes.byref(block), function, None, 0, 0)
assert (grid.value, block.value) == (216, 1024), "two blocks of 1,024 threads on each of 108 multiprocessors"
assert c.call("cuLibraryGetGlobal", ctypes.byref(ctypes.c_uint64()), None, library, b"variable") == 500
c.check("cuLibraryUnload", library)
""",
    )


def test_an_address_is_known_for_what_it_is(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
def attribute(number, pointer, kind=ctypes.c_uint64):
    value = kind()
    return c.call("cuPointerGetAttribute", ctypes.byref(value), number, pointer) or value.value
_, plain = c.allocate(1 << 20)
_, pooled = c.allocate(4096, "cuMemAllocAsync", 0)
_, managed = c.allocate(4096, "cuMemAllocManaged", 1)
pinned = c.made("cuMemHostAlloc", 4096, 0).value
buffer = ctypes.create_string_buffer(8192)
registered = (ctypes.addressof(buffer) + 4095) // 4096 * 4096
c.check("cuMemHostRegister_v2", registered, 4096, 0)
assert c.call("cuMemHostRegister_v2", registered, 4096, 0) == 712
kinds = [attribute(2, each + 100, ctypes.c_uint) for each in (plain, pooled, managed, pinned, registered)]
assert kinds == [2, 2, 2, 1, 1]
assert (attribute(11, plain + 5000), attribute(12, plain + 5000)) == (plain, 1 << 20)
assert [attribute(8, each, ctypes.c_bool) for each in (plain, managed)] == [0, 1]
assert attribute(17, pooled) == c.default_pool().value
assert attribute(2, 0x1234, ctypes.c_uint) == 1, "unknown: CUDA_ERROR_INVALID_VALUE"
numbers, kind, device = (ctypes.c_int * 2)(2, 9), ctypes.c_uint(9), ctypes.c_int(9)
c.check("cuPointerGetAttributes", 2, numbers, (ctypes.c_void_p * 2)(ctypes.addressof(kind), ctypes.addressof(device)), 0x1234)
assert (kind.value, device.value) == (0, -2)
c.check("cuMemHostUnregister", registered)
assert c.call("cuMemHostUnregister", registered) == 713
c.check("cuMemFreeHost", pinned)
assert c.call("cuMemFreeHost", pinned) == 1
""",
    )


def test_settings_are_remembered(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
pool, value, size = c.default_pool(), ctypes.c_int(0), ctypes.c_size_t()
for number in (1, 2, 3):
    c.check("cuMemPoolSetAttribute", pool, number, ctypes.byref(ctypes.c_int(0)))
    c.check("cuMemPoolGetAttribute", pool, number, ctypes.byref(value))
    assert value.value == 0
    c.check("cuMemPoolSetAttribute", pool, number, ctypes.byref(ctypes.c_int(1)))
    c.check("cuMemPoolGetAttribute", pool, number, ctypes.byref(value))
    assert value.value == 1
c.check("cuCtxSetLimit", 0, 4096)
c.check("cuCtxGetLimit", ctypes.byref(size), 0)
assert size.value == 4096
low = c.made("cuStreamCreateWithPriority", 1, ctypes.c_int(-99))
c.check("cuStreamGetPriority", low, ctypes.byref(value))
assert value.value == -5
c.check("cuStreamGetFlags", low, ctypes.byref(value))
assert value.value == 1
ids = [ctypes.c_uint64(), ctypes.c_uint64()]
for number, stream in zip(ids, (low, c.made("cuStreamCreate", 0))):
    c.check("cuStreamGetId", stream, ctypes.byref(number))
assert ids[0].value != ids[1].value
""",
    )


def test_a_capture_takes_copies_and_functions_and_the_streams_that_join_it(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
one, two, event = c.made("cuStreamCreate", 1), c.made("cuStreamCreate", 1), c.made("cuEventCreate", 0)
_, word = c.allocate(64)
c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 16)
read, called = lambda at: ctypes.c_uint.from_address(at).value, []
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data))
graph, count, status, number = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int(), ctypes.c_uint64()
c.check("cuStreamBeginCapture_v2", one, 0)
c.check("cuMemsetD32Async", word, ctypes.c_uint(5), 1, one)
c.check("cuEventRecord", event, one)
c.check("cuStreamWaitEvent", two, event, 0)
c.launch(c.kernel("k_1us"), two)
c.check("cuMemcpyDtoDAsync_v2", word + 4, word, 4, two)
c.check("cuStreamGetCaptureInfo_v2", two, ctypes.byref(status), ctypes.byref(number), None, None, None)
assert status.value == 1 and number.value > 0
assert c.call("cuStreamEndCapture", two, ctypes.byref(graph)) == 903
c.check("cuLaunchHostFunc", one, function, 3)
assert c.call("cuStreamWaitValue32_v2", one, word, 0, 0) == 900
c.check("cuStreamEndCapture", one, ctypes.byref(graph))
c.check("cuStreamIsCapturing", two, ctypes.byref(status))
assert status.value == 0
assert c.call("cuStreamWaitEvent", two, event, 0) == 907, "its capture is over"
c.check("cuGraphGetNodes", graph, None, ctypes.byref(count))
assert (count.value, read(word), called) == (4, 0, [])
executable = c.made("cuGraphInstantiateWithFlags", graph, 0)
c.check("cuGraphDestroy", graph)
for times in (1, 2):
    c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 2)
    c.check("cuGraphLaunch", executable, one)
    c.check("cuStreamSynchronize", one)
    assert (read(word), read(word + 4), called) == (5, 5, [3] * times)
""",
    )


def test_an_event_is_shared_with_another_process(node: Node) -> None:
    importer = """
class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]
c = Cuda()
event = c.made("cuIpcOpenEventHandle", Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])))
print(c.call("cuEventQuery", event), flush=True)
sys.stdin.readline()
c.check("cuEventSynchronize", event)
print(c.call("cuEventQuery", event))
"""
    client(
        node,
        f"""
import subprocess
c = Cuda()
assert c.call("cuEventCreate", ctypes.byref(ctypes.c_void_p()), 4) == 1, "it must not measure time"
event, stream, handle = c.made("cuEventCreate", 6), c.made("cuStreamCreate", 1), ctypes.create_string_buffer(64)
_, word = c.allocate(64)
c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 1)
c.check("cuIpcGetEventHandle", handle, event)
c.check("cuStreamWaitValue32_v2", stream, word, ctypes.c_uint(1), 0)
c.check("cuEventRecord", event, stream)
prelude = "import sys\\nsys.path.insert(0, {str(ROOT / "tests" / "interposer")!r})\\nfrom cuda_client import *\\n"
other = subprocess.Popen([{sys.executable!r}, "-c", prelude + {importer!r}, handle.raw.hex()],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert other.stdout.readline() == "600\\n"
c.check("cuMemsetD32Async", word, ctypes.c_uint(1), 1, 0)
assert other.communicate("on", timeout=15)[0] == "0\\n"
c.check("cuEventSynchronize", event)
""",
    )


def test_a_thread_may_end_before_its_stream_has_come_to_its_end(node: Node) -> None:
    client(
        node,
        """
import threading
c, called = Cuda(), []
_, word = c.allocate(64)
c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 1)
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data))
kernel = c.kernel("k_10us")
def work():
    c.use(0)
    c.check("cuStreamWaitValue32_v2_ptsz", 0, word, ctypes.c_uint(1), 0)
    c.check("cuLaunchKernel_ptsz", kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
    c.check("cuLaunchHostFunc_ptsz", 0, function, 1)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert called == []
c.check("cuMemsetD32Async", word, ctypes.c_uint(1), 1, 0)
c.check("cuCtxSynchronize")
assert called == [1] * 8
""",
    )


def test_memory_is_given_out_in_blocks_where_the_description_says_so(tmp_path: Path) -> None:
    description = tmp_path / "node.ini"
    text = (ROOT / "simgpu" / "samples" / "two-models.ini").read_text()
    description.write_text(text.replace("[gpu 2]", "memory-block = 2MiB\n[gpu 2]"))
    subprocess.run([COMMAND, "create", description, tmp_path / "gpus"], check=True)
    client(
        Node(tmp_path / "gpus"),
        """
c = Cuda()
used = lambda: (c.info()[1] - c.info()[0]) / MIB
small = [c.allocate(1)[1] for _ in range(4096)]
assert used() == 2, "512 bytes each"
small.append(c.allocate(1)[1])
assert used() == 4
large = c.allocate(3 * MIB)[1]
assert used() == 8
for pointer in small:
    assert c.free(pointer) == SUCCESS
assert used() == 4
assert c.free(large) == SUCCESS
assert used() == 0
c.use(2)
c.allocate(1)
assert c.info()[1] - c.info()[0] == 1, "the others grant to the byte"
second = c.made("cuCtxCreate_v2", 0, 1)
c.allocate(5)
c.check("cuCtxDestroy_v2", second)
c.use(1)
assert used() == 0, "what ends with its context is given back"
""",
    )
