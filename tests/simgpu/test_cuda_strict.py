"""The simulated CUDA driver is strict: what a program may not do ends in an error, or ends the program with a sentence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simgpu.conftest import Node
from tests.simgpu.test_cuda import PRELUDE, client

# What is ended and used again, and what the sentence calls it.
ENDED = {
    "a stream": """
stream = c.made("cuStreamCreate", 1)
c.check("cuStreamDestroy_v2", stream)
c.call("cuStreamSynchronize", stream)""",
    "an event": """
event = c.made("cuEventCreate", 0)
c.check("cuEventDestroy_v2", event)
c.call("cuEventDestroy_v2", event)""",
    "a module": """
module = c.made("cuModuleLoadData", b"image")
c.check("cuModuleUnload", module)
c.call("cuModuleGetFunction", ctypes.byref(ctypes.c_void_p()), module, b"k_1us")""",
    "a function": """
module = c.made("cuModuleLoadData", b"image")
function = c.made("cuModuleGetFunction", module, b"k_1us")
c.check("cuModuleUnload", module)
c.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, None, None)""",
    "a graph": """
graph = c.made("cuGraphCreate", 0)
c.check("cuGraphDestroy", graph)
c.call("cuGraphInstantiateWithFlags", ctypes.byref(ctypes.c_void_p()), graph, 0)""",
    "a node": """
graph = c.made("cuGraphCreate", 0)
node = c.made("cuGraphAddEmptyNode", graph, None, 0)
c.check("cuGraphDestroy", graph)
c.call("cuGraphNodeGetType", node, ctypes.byref(ctypes.c_int()))""",
    "an executable graph": """
executable = c.made("cuGraphInstantiateWithFlags", c.made("cuGraphCreate", 0), 0)
c.check("cuGraphExecDestroy", executable)
c.call("cuGraphLaunch", executable, 0)""",
}


@pytest.mark.parametrize("what", ENDED)
def test_a_program_that_uses_what_has_ended_is_ended(node: Node, what: str) -> None:
    result = node.run([sys.executable, "-c", f"{PRELUDE}c = Cuda(){ENDED[what]}\nprint('went on')"])
    assert result.returncode == -signal.SIGABRT, result.stderr
    assert result.stdout == ""
    assert f"simgpu: this program used {what} (0x" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_handle_is_of_its_kind(node: Node) -> None:
    code = """
c = Cuda()
c.call("cuStreamSynchronize", c.made("cuEventCreate", 0))
"""
    result = node.run([sys.executable, "-c", PRELUDE + code])
    assert result.returncode == -signal.SIGABRT
    assert "for a stream, which it is not" in result.stderr


def test_what_belongs_to_a_context_is_used_in_it_alone(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
stream, event, other, kernel = (*(c.made(name, 0) for name in ("cuStreamCreate", "cuEventCreate", "cuEventCreate")), c.kernel("k_1us"))
launch = lambda function, stream: c.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
second = c.made("cuCtxCreate_v2", 0, 0)
own = c.made("cuEventCreate", 0)
assert launch(kernel, 0) == 400, "its module is another context's"
assert launch(c.kernel("k_1us"), stream) == 400
assert c.call("cuEventRecord", own, stream) == c.call("cuEventRecord", event, 0) == 400
c.check("cuEventRecord", event, stream)
c.check("cuStreamWaitEvent", 0, event, 0)
c.check("cuStreamSynchronize", stream)
c.check("cuEventRecord", own, 0)
c.check("cuCtxSynchronize")
assert c.call("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), event, own) == 400
mine = c.made("cuStreamCreate", 0)
c.check("cuCtxDestroy_v2", second)
for _ in range(60):
    c.check("cuCtxDestroy_v2", c.made("cuCtxCreate_v2", 0, 0))
assert c.call("cuStreamQuery", mine) == c.call("cuEventQuery", own) == 709, "their context is gone"
assert launch(kernel, stream) == SUCCESS
""",
    )


def test_a_primary_context_has_one_handle(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
first = c.made("cuDevicePrimaryCtxRetain", 1).value
c.check("cuDevicePrimaryCtxRelease_v2", 1)
c.made("cuCtxCreate_v2", 0, 0)
assert c.made("cuDevicePrimaryCtxRetain", 1).value == first
""",
    )


def test_copies_stay_within_what_was_allocated(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
_, pointer = c.allocate(1000)
data = ctypes.create_string_buffer(2000)
c.check("cuMemcpyHtoD_v2", pointer, data, 1000)
for name, arguments in {
    "cuMemcpyHtoD_v2": (pointer, data, 1001),
    "cuMemcpyDtoH_v2": (data, pointer + 999, 2),
    "cuMemcpyDtoD_v2": (pointer, 4096, 8),
    "cuMemsetD8_v2": (pointer + 1000, 0, 1),
    "cuMemsetD32_v2": (pointer + 2, 0, 1),
}.items():
    assert c.call(name, *arguments) == 1, name
assert c.call("cuMemcpyHtoDAsync_v2", 8, data, 1, 0) == 1
assert c.free(pointer) == SUCCESS
assert c.free(pointer) == 1, "CUDA_ERROR_INVALID_VALUE"
assert c.call("cuMemcpyDtoH_v2", data, pointer, 1) == 1
""",
    )


def test_after_a_fault_nothing_works_until_the_context_is_made_anew(node: Node) -> None:
    client(
        node,
        """
c = Cuda()
kernel, before = c.kernel("fault_20ms"), c.allocate(1 << 20)[1]
stream = c.made("cuStreamCreate", 1)
c.launch(kernel, stream)
assert c.allocate(1 << 20)[0] == SUCCESS, "it has not come to that yet"
assert c.call("cuStreamSynchronize", stream) == 700
for result in (c.allocate(1)[0], c.free(before), c.call("cuCtxSynchronize"), c.call("cuStreamQuery", 0),
               c.call("cuMemcpyDtoH_v2", ctypes.create_string_buffer(1), before, 1)):
    assert result == 700
name = ctypes.c_char_p()
c.check("cuGetErrorName", 700, ctypes.byref(name))
assert name.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
c.check("cuDevicePrimaryCtxReset_v2", 0)
c.use(0)
assert c.info()[0] == c.info()[1], "what the context had is free"
assert c.allocate(1)[0] == SUCCESS
""",
    )


LAST = """
#include <stdio.h>
int (*last_call)(unsigned long long);
__attribute__((destructor)) static void end(void) {
    printf("%d ", last_call(0));
    fflush(stdout);
}
"""


def test_the_driver_is_gone_in_a_programs_last_functions(node: Node, tmp_path: Path) -> None:
    """Loaders end libraries in one order or the other: one of the two is ended after the driver."""
    (tmp_path / "last.c").write_text(LAST)
    libraries = [str(tmp_path / name) for name in ("one.so", "other.so")]
    for library in libraries:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "last.c"], check=True)
    code = f"""
one = ctypes.CDLL({libraries[0]!r})
c = Cuda()
other = ctypes.CDLL({libraries[1]!r})
assert c.free(0) == SUCCESS
for library in (one, other):
    ctypes.c_void_p.in_dll(library, "last_call").value = c.address("cuMemFree_v2")
"""
    assert set(client(node, code).split()) == {"0", "4"}, "CUDA_ERROR_DEINITIALIZED after its end"
