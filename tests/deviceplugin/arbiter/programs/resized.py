"""Programs in a share that is resized."""

from __future__ import annotations

import random
import sys

from tests.interposer.cuda_client import MIB, SUCCESS, Cuda


def storm() -> None:
    """Allocate as much as possible up to some amount, free all of it, and repeat."""
    c = Cuda()
    print("started", flush=True)
    while True:
        held, wanted = [], random.randrange(100 * MIB)
        while wanted > 0:
            size = random.randrange(1, 10 * MIB)
            result, pointer = c.allocate(size)
            if result != SUCCESS:
                break
            held.append(pointer)
            wanted -= size
        while held:
            assert c.free(held.pop()) == SUCCESS


def quiet() -> None:
    """Execute commands: a number of bytes to allocate, or "free". Never launches anything."""
    c = Cuda()
    held: list[int] = []
    print("started", flush=True)
    for line in sys.stdin:
        if line.strip() == "free":
            print(c.free(held.pop()), flush=True)
        else:
            result, pointer = c.allocate(int(line))
            if result == SUCCESS:
                held.append(pointer)
            print(result, c.info()[1], flush=True)
