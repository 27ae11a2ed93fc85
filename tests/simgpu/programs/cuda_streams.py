"""Work that frameworks queue in streams: copies, fills, words, host functions, events for other processes, captures."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

from tests.interposer.cuda_client import NOT_SUPPORTED, Cuda, in_threads
from tests.programs import command


def copies_and_fills() -> None:
    c = Cuda()
    stream, back = c.made("cuStreamCreate", 1), ctypes.create_string_buffer(64)
    _, pointer = c.allocate(4096)
    _, two = c.allocate(4096)
    c.check("cuMemsetD32Async", pointer, ctypes.c_uint(0x04030201), 16, stream)
    c.check("cuMemcpyDtoDAsync_v2", two, pointer, 64, stream)
    c.check("cuMemsetD16_v2", two + 8, ctypes.c_ushort(0x0605), 2)
    c.check("cuMemcpyAsync_ptsz", two + 16, pointer, 4, 0)
    c.check("cuMemcpyDtoHAsync_v2", back, two, 64, stream)
    assert back.raw[:20] == bytes([1, 2, 3, 4] * 2 + [5, 6] * 2 + [1, 2, 3, 4] * 2)

    class Copy2D(ctypes.Structure):
        _fields_ = [
            (n, t)
            for side in ("src", "dst")
            for n, t in (
                (side + "X", ctypes.c_size_t),
                (side + "Y", ctypes.c_size_t),
                (side + "Type", ctypes.c_int),
                (side + "Host", ctypes.c_void_p),
                (side + "Device", ctypes.c_uint64),
                (side + "Array", ctypes.c_void_p),
                (side + "Pitch", ctypes.c_size_t),
            )
        ] + [("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]

    rows = ctypes.create_string_buffer(b"abcdefghijklmnop", 16)
    into = Copy2D(
        srcX=1,
        srcY=1,
        srcType=1,
        srcHost=ctypes.addressof(rows),
        srcPitch=4,
        dstType=2,
        dstDevice=pointer,
        dstPitch=8,
        width=2,
        height=3,
    )
    c.check("cuMemcpy2DAsync_v2", ctypes.byref(into), stream)
    c.check("cuMemcpyDtoH_v2", back, pointer, 18)
    assert (back.raw[0:2], back.raw[8:10], back.raw[16:18]) == (b"fg", b"jk", b"no")
    assert (
        c.call("cuMemcpy2D_v2", ctypes.byref(Copy2D(srcType=3, dstType=2, dstDevice=pointer, width=1, height=1)))
        == NOT_SUPPORTED
    )
    assert c.call("cuMemcpyHtoDAsync_v2", 0, back, 4, stream) == 1


def waits_for_a_word() -> None:
    c = Cuda()
    stream, event, other = c.made("cuStreamCreate", 1), c.made("cuEventCreate", 0), c.made("cuStreamCreate", 1)
    _, word = c.allocate(64)
    _, copy = c.allocate(64)
    c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 16)
    c.check("cuMemsetD32_v2", copy, ctypes.c_uint(0), 16)

    def read(at: int) -> int:
        return ctypes.c_uint.from_address(at).value

    called, kernel = [], c.kernel("k_100us")
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda data: called.append((data, read(copy), threading.get_ident()))
    )
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
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
        lambda *arguments: answers.append(arguments)
    )
    c.check("cuStreamAddCallback", stream, callback, 43, 0)
    c.check("cuCtxSynchronize")
    assert answers == [(stream.value, 0, 43)]


def capture_of_everything() -> None:
    c = Cuda()
    stream, two, event = c.made("cuStreamCreate", 1), c.made("cuStreamCreate", 1), c.made("cuEventCreate", 0)
    _, word = c.allocate(64)
    c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 16)
    read, called = lambda at: ctypes.c_uint.from_address(at).value, []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data))
    graph, count, status, number = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int(), ctypes.c_uint64()
    c.check("cuStreamBeginCapture_v2", stream, 0)
    c.check("cuMemsetD32Async", word, ctypes.c_uint(5), 1, stream)
    c.check("cuEventRecord", event, stream)
    c.check("cuStreamWaitEvent", two, event, 0)
    c.launch(c.kernel("k_1us"), two)
    c.check("cuMemcpyDtoDAsync_v2", word + 4, word, 4, two)
    c.check("cuStreamGetCaptureInfo_v2", two, ctypes.byref(status), ctypes.byref(number), None, None, None)
    assert status.value == 1 and number.value > 0
    assert c.call("cuStreamEndCapture", two, ctypes.byref(graph)) == 903
    c.check("cuLaunchHostFunc", stream, function, 3)
    assert c.call("cuStreamWaitValue32_v2", stream, word, 0, 0) == 900
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    c.check("cuStreamIsCapturing", two, ctypes.byref(status))
    assert status.value == 0
    assert c.call("cuStreamWaitEvent", two, event, 0) == 907, "its capture is over"
    c.check("cuGraphGetNodes", graph, None, ctypes.byref(count))
    assert (count.value, read(word), called) == (4, 0, [])
    executable = c.made("cuGraphInstantiateWithFlags", graph, 0)
    c.check("cuGraphDestroy", graph)
    for times in (1, 2):
        c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 2)
        c.check("cuGraphLaunch", executable, stream)
        c.check("cuStreamSynchronize", stream)
        assert (read(word), read(word + 4), called) == (5, 5, [3] * times)


def opens_an_event(handle: bytes) -> None:
    class Handle(ctypes.Structure):
        _fields_ = [("reserved", ctypes.c_char * 64)]

    c = Cuda()
    event = c.made("cuIpcOpenEventHandle", Handle.from_buffer_copy(handle))
    print(c.call("cuEventQuery", event), flush=True)
    sys.stdin.readline()
    c.check("cuEventSynchronize", event)
    print(c.call("cuEventQuery", event))


def shares_an_event() -> None:
    c = Cuda()
    assert c.call("cuEventCreate", ctypes.byref(ctypes.c_void_p()), 4) == 1, "it must not measure time"
    event, stream, handle = c.made("cuEventCreate", 6), c.made("cuStreamCreate", 1), ctypes.create_string_buffer(64)
    _, word = c.allocate(64)
    c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 1)
    c.check("cuIpcGetEventHandle", handle, event)
    c.check("cuStreamWaitValue32_v2", stream, word, ctypes.c_uint(1), 0)
    c.check("cuEventRecord", event, stream)
    other = subprocess.Popen(
        command(opens_an_event, handle.raw),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "600\n"
    c.check("cuMemsetD32Async", word, ctypes.c_uint(1), 1, 0)
    assert other.communicate("on", timeout=15)[0] == "0\n"
    c.check("cuEventSynchronize", event)


def threads_that_end_early() -> None:
    c, called = Cuda(), []
    _, word = c.allocate(64)
    c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 1)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data))
    kernel = c.kernel("k_10us")

    def work() -> None:
        c.use(0)
        c.check("cuStreamWaitValue32_v2_ptsz", 0, word, ctypes.c_uint(1), 0)
        c.check("cuLaunchKernel_ptsz", kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
        c.check("cuLaunchHostFunc_ptsz", 0, function, 1)

    in_threads(work, 8)
    assert called == []
    c.check("cuMemsetD32Async", word, ctypes.c_uint(1), 1, 0)
    c.check("cuCtxSynchronize")
    assert called == [1] * 8
