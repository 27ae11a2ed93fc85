"""Programs that ask for more memory than is available."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda
from tests.interposer.programs import memory_limit


def refused_again_and_again(kind: str, proc: bool, size: int) -> None:
    c, attempt = Cuda(proc=proc), memory_limit.KINDS[kind]
    assert attempt(c, 1 * MIB)[0] == SUCCESS
    for _ in range(3):
        assert attempt(c, size)[0] == OUT_OF_MEMORY


def refused_by_the_driver(size: int) -> None:
    c = Cuda()
    for kind in memory_limit.KINDS.values():
        if kind is not memory_limit.plain_of_32_bits and kind is not memory_limit.managed:
            assert kind(c, size)[0] == OUT_OF_MEMORY


def refused_with_nobody_to_tell(*, reader: bool) -> None:
    """Get a refusal while stderr is a full pipe, or a pipe without a reader."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    reading, writing = os.pipe()
    if reader:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"." * select.PIPE_BUF)
        os.set_blocking(writing, True)
    else:
        os.close(reading)
    os.dup2(writing, 2)
    assert memory_limit.plain(Cuda(), 64 << 30)[0] == OUT_OF_MEMORY
    print("went on")
