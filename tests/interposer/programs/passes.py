"""Programs that launch many short kernels, so that several are counted at once, and then something else."""

from __future__ import annotations

import time

from tests.interposer.cuda_client import Cuda
from tests.interposer.programs.launching import PTR, kernel, launch, say


def many(c: Cuda, function: PTR) -> None:
    for _ in range(3000):
        assert launch(c, function) == 0


def many_and_one() -> None:
    c = Cuda()
    function = kernel(c, 1)
    many(c, function)
    say("many")
    input()
    assert launch(c, function) == 0
    say("one more")


def many_and_one_elsewhere() -> None:
    c = Cuda()
    function = kernel(c, 1)
    c.use(1)
    other = kernel(c)
    c.use(0)
    many(c, function)
    c.use(1)
    assert launch(c, other) == 0
    say("the other")


def many_and_a_few() -> None:
    c = Cuda()
    function = kernel(c, 1)
    many(c, function)
    say("many")
    for _ in range(100):
        assert launch(c, function) == 0
        time.sleep(0.015)
    say("enough")
    input()


def context_in_the_place_of_another() -> None:
    c = Cuda()
    first = c.made("cuCtxCreate_v2", 0, 0)
    function = kernel(c, 1)
    for _ in range(3000):
        assert launch(c, function) == 0
    c.check("cuCtxDestroy_v2", first)
    for _ in range(1000):
        second = c.made("cuCtxCreate_v2", 0, 1)
        if second.value == first.value:
            break
        c.check("cuCtxDestroy_v2", second)
    say(second.value == first.value)
    assert launch(c, kernel(c, 1)) == 0
    say("launched")
