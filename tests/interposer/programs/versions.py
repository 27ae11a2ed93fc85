"""Programs that run with arbiters of other protocol versions."""

from __future__ import annotations

import sys

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda


def fills_and_launches() -> None:
    c = Cuda()
    assert c.allocate(3 * MIB)[0] == SUCCESS
    assert c.allocate(2 * MIB)[0] == OUT_OF_MEMORY  # so the library asks the arbiter
    assert c.allocate(MIB)[0] == SUCCESS
    function = c.kernel("k_10us")
    for _ in range(20):
        c.launch(function)
    c.check("cuCtxSynchronize")


def fills_and_launches_for_each_line() -> None:
    c = Cuda()
    assert c.allocate(3 * MIB)[0] == SUCCESS
    print("ready", flush=True)
    for _ in sys.stdin:
        assert c.allocate(2 * MIB)[0] == OUT_OF_MEMORY
        result, pointer = c.allocate(MIB)
        assert result == SUCCESS
        c.free(pointer)
        function = c.kernel("k_10us")
        c.launch(function)
        c.check("cuCtxSynchronize")
        print("well", flush=True)
