"""A Triton kernel for `fill_frameworks`, compiled at its first launch."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton import testing

VERSION = triton.__version__
NUMBERS = 1 << 22
BLOCK = 1024


@triton.jit
def add(left, right, result, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < count
    tl.store(result + place, tl.load(left + place, mask=inside) + tl.load(right + place, mask=inside), mask=inside)


def measure() -> dict[str, object]:
    """Return whether its sums are right, and their time by Triton's do_bench."""
    left = torch.rand(NUMBERS, device="cuda")
    result = torch.empty_like(left)

    def run() -> None:
        add[(NUMBERS // BLOCK,)](left, left, result, NUMBERS, BLOCK)

    run()
    right = bool(torch.equal(result, left + left))
    return {"right": right, "do_bench_ms": testing.do_bench(run, warmup=5, rep=20)}


def launcher() -> Callable[[], object]:
    """Return a function that launches it for a few numbers."""
    numbers = torch.zeros(BLOCK, device="cuda")
    return lambda: add[(1,)](numbers, numbers, numbers, BLOCK, BLOCK)
