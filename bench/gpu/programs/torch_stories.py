"""Run PyTorch scenarios that simulation cannot show, in a separate process, for tests/gpu.

    torch_stories reset BYTES      fills a share of BYTES repeatedly, with cudaDeviceReset in between
    torch_stories leave            ends normally while kernels are queued
    torch_stories collective       one process for each GPU: NCCL sums over all of them, as fast as it can
    torch_stories communicators N  makes and destroys a NCCL communicator N times, and reports the free memory

Each prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROUNDS = 3
CHUNK = 64 << 20
NUMBERS = 1 << 22
SECONDS = 3.0


def reset(limit: int) -> dict[str, object]:
    """Fill the share with cudaMalloc in each round, since PyTorch does not survive a reset."""
    runtime = ctypes.CDLL(_loaded("libcudart"))
    filled = []
    for _ in range(ROUNDS):
        held, pointer = 0, ctypes.c_void_p()
        while held <= limit and runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(CHUNK)) == 0:
            held += CHUNK
        runtime.cudaGetLastError()
        filled.append(held)
        if (result := runtime.cudaDeviceReset()) != 0:
            raise SystemExit(f"cudaDeviceReset: {result}")
    return {"filled": filled}


def leave() -> dict[str, object]:
    """End the interpreter while kernels are still queued."""
    matrix = torch.randn(8192, 8192, device="cuda")
    for _ in range(50):
        torch.mm(matrix, matrix)
    return {"queued": not torch.cuda.current_stream().query()}


def collective() -> dict[str, object]:
    """Run a process on each GPU at the same time; return sums a second, and whether they were right."""
    count = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(_rank, (count, directory), nprocs=count)
        answer: dict[str, object] = json.loads(Path(directory, "answer").read_text())
    return answer


def _rank(rank: int, count: int, directory: str) -> None:
    torch.cuda.set_device(rank)
    _group(directory, rank, count)
    numbers = torch.full((NUMBERS,), float(rank + 1), device="cuda")
    torch.distributed.all_reduce(numbers)
    right = bool((numbers == count * (count + 1) / 2).all())
    done, more = 0, torch.ones(1, device="cuda")
    begun = time.monotonic()
    while more.item():  # all end after the same sum
        for _ in range(10):
            torch.distributed.all_reduce(numbers)
        done += 10
        more.fill_(time.monotonic() < begun + SECONDS)
        torch.distributed.all_reduce(more, op=torch.distributed.ReduceOp.MIN)
    if rank == 0:
        answer = {"gpus": count, "right": right, "sums_per_second": done / (time.monotonic() - begun)}
        Path(directory, "answer").write_text(json.dumps(answer))
    torch.distributed.destroy_process_group()


def communicators(times: int) -> dict[str, object]:
    """Return the free memory after each communicator."""
    free = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as directory:
            _group(directory, 0, 1)
            torch.distributed.all_reduce(torch.ones(1, device="cuda"))
            torch.distributed.destroy_process_group()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0])
    return {"free": free}


def _group(directory: str, rank: int, count: int) -> None:
    meeting = f"file://{directory}/meeting"
    torch.distributed.init_process_group("nccl", init_method=meeting, rank=rank, world_size=count)


def _loaded(name: str) -> str:
    return next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if name in line)


STORIES: dict[str, Any] = {"reset": reset, "leave": leave, "collective": collective, "communicators": communicators}

if __name__ == "__main__":
    answer = STORIES[sys.argv[1]](*map(int, sys.argv[2:]))
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
