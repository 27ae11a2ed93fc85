"""Fill a share's memory with one framework until the framework's own exception, free all of it, and fill it again.

    python -m bench.gpu.programs.fill_frameworks FRAMEWORK BYTES [VARIABLE=VALUE...]   in the root of a checkout

Filling stops at the first failure, or beyond BYTES (0: fill nothing). Print "filled" and a JSON object: "missing" for
a framework that cannot be imported, else the sizes it reported and filled. After a line on stdin, measure launches and
print "launched" and a JSON object.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
ROUNDS = 2
LAUNCH_ROUNDS, LAUNCHES = 21, 200
NOTHING = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n\0"


@dataclass
class Framework:
    """A framework's calls: `take` allocates a number of bytes, `give_back` frees all; `chunks` are the sizes to fill
    by.
    """

    version: str
    total: int
    free: int
    take: Callable[[int], object]
    give_back: Callable[[list[Any]], None]
    launch: Callable[[], object] | None = None
    synchronize: Callable[[], object] = lambda: None
    chunks: tuple[int, ...] = (256 * MIB, 32 * MIB, 4 * MIB)
    facts: dict[str, object] = field(default_factory=dict)


def torch() -> Framework:
    import torch

    free, total = torch.cuda.mem_get_info()
    number = torch.zeros(1, device="cuda")

    def give_back(held: list[Any]) -> None:
        held.clear()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    return Framework(
        torch.__version__,
        total,
        free,
        lambda count: torch.empty(count, dtype=torch.uint8, device="cuda"),
        give_back,
        lambda: number.add_(1),
        torch.cuda.synchronize,
        facts={"allocator": torch.cuda.get_allocator_backend()},
    )


def triton() -> Framework:
    """PyTorch's memory, and a Triton kernel: compiled, with its launcher (by a C compiler), and measured."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # so that nothing is cached from an earlier run
        from bench.gpu.programs import triton_kernel

        made = torch()
        made.version, made.facts = triton_kernel.VERSION, triton_kernel.measure()
        made.launch = triton_kernel.launcher()
    return made


def jax() -> Framework:
    import jax
    import jax.numpy as jnp

    device = jax.devices("gpu")[0]
    add = jax.jit(lambda number: number + 1)
    number = add(jnp.zeros(1)).block_until_ready()
    seen = device.memory_stats() or {}
    limit, used = seen.get("bytes_limit", 0), seen.get("bytes_in_use", 0)
    return Framework(
        jax.__version__,
        limit,
        limit - used,
        lambda count: jnp.zeros(count, dtype=jnp.uint8).block_until_ready(),
        list.clear,
        lambda: add(number),
        lambda: add(number).block_until_ready(),
        chunks=(128 * MIB,),  # each refusal takes JAX ten seconds of retries
        facts={"pool": seen.get("pool_bytes", 0)},
    )


def cupy() -> Framework:
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    number = cupy.zeros(1)

    def give_back(held: list[Any]) -> None:
        held.clear()
        cupy.cuda.Device().synchronize()
        cupy.get_default_memory_pool().free_all_blocks()

    def launch() -> None:
        nonlocal number
        number += 1

    take = lambda count: cupy.empty(count, dtype=cupy.uint8)  # noqa: E731
    return Framework(cupy.__version__, total, free, take, give_back, launch, lambda: cupy.cuda.Device().synchronize())


def numba() -> Framework:
    import numba
    import numpy
    from numba import cuda

    context = cuda.current_context()
    free, total = context.get_memory_info()

    def give_back(held: list[Any]) -> None:
        held.clear()
        context.deallocations.clear()

    def nothing() -> None:
        pass

    kernel = cuda.jit(nothing)
    return Framework(
        numba.__version__,
        total,
        free,
        lambda count: cuda.device_array(count, numpy.uint8),
        give_back,
        lambda: kernel[1, 1](),
        cuda.synchronize,
    )


def cuda_bindings() -> Framework:
    import cuda.bindings
    from cuda.bindings import driver

    def call(function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
        result, *values = function(*arguments)
        if result != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(str(result.name))
        return values[0] if len(values) == 1 else values

    call(driver.cuInit, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0)))
    free, total = call(driver.cuMemGetInfo)
    kernel = call(driver.cuModuleGetFunction, call(driver.cuModuleLoadData, NOTHING), b"nothing")

    def give_back(held: list[Any]) -> None:
        for pointer in held:
            call(driver.cuMemFree, pointer)
        held.clear()

    return Framework(
        cuda.bindings.__version__,
        total,
        free,
        lambda count: call(driver.cuMemAlloc, count),
        give_back,
        lambda: call(driver.cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0),
        lambda: call(driver.cuCtxSynchronize),
    )


def cuda_core() -> Framework:
    core = importlib.import_module("cuda.core")
    made = cuda_bindings()
    device = (core if hasattr(core, "Device") else importlib.import_module("cuda.core.experimental")).Device()
    device.set_current()

    def take(count: int) -> object:
        buffer = device.allocate(count, stream=device.default_stream)
        device.sync()
        return buffer

    def give_back(held: list[Any]) -> None:
        for buffer in held:
            buffer.close()
        held.clear()
        device.sync()

    return Framework(core.__version__, made.total, made.free, take, give_back, made.launch, device.sync)


FRAMEWORKS: dict[str, Callable[[], Framework]] = {
    "torch": torch,
    "triton": triton,
    "jax": jax,
    "cupy": cupy,
    "numba": numba,
    "cuda.bindings": cuda_bindings,
    "cuda.core": cuda_core,
}


def fill(framework: Framework, limit: int) -> tuple[int, list[str]]:
    """Allocate until refused; return the bytes and the errors."""
    held: list[Any] = []
    filled, raised = 0, []
    for chunk in framework.chunks:
        try:
            while filled <= limit:
                held.append(framework.take(chunk))
                filled += chunk
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}".splitlines()[0][:160])
    framework.give_back(held)
    return filled, raised


def filled(framework: Framework, limit: int) -> dict[str, object]:
    """Return the sizes that a framework reports and fills."""
    seen: dict[str, object] = {
        "version": framework.version,
        "total": framework.total,
        "free": framework.free,
        **framework.facts,
    }
    if limit:
        rounds = [fill(framework, limit) for _ in range(ROUNDS)]
        seen |= {"filled": [count for count, _ in rounds], "raised": [raised[:1] for _, raised in rounds]}
    return seen


def launched(framework: Framework) -> dict[str, object]:
    """Return microseconds per launch, the median of short rounds, or the error."""
    if framework.launch is None:
        return {}
    try:
        took = []
        for _ in range(LAUNCH_ROUNDS):
            framework.synchronize()
            begun = time.perf_counter()
            for _ in range(LAUNCHES):
                framework.launch()
            took.append((time.perf_counter() - begun) * 1e6 / LAUNCHES)
            framework.synchronize()
        return {"launch_us": statistics.median(took)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def main(name: str, limit: int, variables: Sequence[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries' output on stdout goes to stderr
    for variable in variables:
        key, _, value = variable.partition("=")
        os.environ[key] = value
    try:
        framework = FRAMEWORKS[name]()
        seen = filled(framework, limit)
    except ImportError as error:
        print("filled", json.dumps({"missing": str(error)}), file=answers, flush=True)
        return
    except Exception as error:
        traceback.print_exc()
        print("failed", json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print("filled", json.dumps(seen), file=answers, flush=True)
    if sys.stdin.readline():
        print("launched", json.dumps(launched(framework)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
