"""PyTorch for CUDA on simulated GPUs, alone and in shares of one.

PyTorch is the real one. Below it are the runtime of cudart/, the library and the arbiter that ship, and the simulated driver.
What needs cuBLAS, cuDNN or NCCL is not tried: they have NVIDIA's runtime inside, which does not start on a simulated driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.arbiter import share_resizing
from tests.clients.cuda import share
from tests.deviceplugin import simulated
from tests.interposer import container

pytestmark = pytest.mark.slow

GPU_BYTES = 40 * share.GIB
PIECE_BYTES = 256 << 20
SEGMENT_BYTES = 20 << 20  # by which expandable segments grow
ALLOCATORS = {
    "native": "backend:native",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
SECONDS = 5  # of a story in which processes allocate at random

SIZES = f"""
import json, torch
torch.zeros(1, device="cuda")
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.empty_cache()
held, error = [], None
try:
    while True:
        held.append(torch.empty({PIECE_BYTES}, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as failed:
    error = str(failed)
pieces = len(held)
del held
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(json.dumps([total, pieces, error, torch.cuda.mem_get_info(), torch.cuda.get_allocator_backend()]))
"""
# Takes and gives back at random until it is told to stop; says how often it met the limit.
STORM = """
import random, sys, threading, torch
random.seed(int(sys.argv[1]))
torch.zeros(1, device="cuda")
held, made, refused, stop = [], 0, 0, threading.Event()
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
while not stop.is_set():
    try:
        held.append(torch.empty(random.randrange(1, 400 << 20), dtype=torch.uint8, device="cuda"))
        made += 1
    except torch.cuda.OutOfMemoryError:
        refused += 1
        del held[: len(held) // 2 + 1]
        if random.random() < 0.3:
            torch.cuda.empty_cache()
    if held:
        held[-1][:8].add_(1)
    if held and random.random() < 0.35:
        del held[random.randrange(len(held))]
held.clear()
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(made, refused, flush=True)
"""
# For each line: the most that was in use since the line before, and what is in use now, by the driver's own count.
LOOKS = """
import pynvml, sys, threading
pynvml.nvmlInit()
handle, asked = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Semaphore(0)
threading.Thread(target=lambda: [asked.release() for _ in sys.stdin], daemon=True).start()
most = 0
while True:
    now = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    most = max(most, now)
    if asked.acquire(timeout=0.0005):
        print(most, now, flush=True)
        most = 0
"""
WORK = """
import json, os, torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, n):
        return torch.full((1024,), float(n))
def child(queue, tensor):
    queue.put((tensor.device.type, tensor.cpu()[:3].tolist(), torch.cuda.mem_get_info()[1]))
def forked():
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            os._exit(0 if "re-initialize CUDA in forked" in str(error) else 1)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def graph():
    static, graph = torch.zeros(1024, device="cuda"), torch.cuda.CUDAGraph()
    source = torch.arange(1024, dtype=torch.float32).to("cuda")
    with torch.cuda.graph(graph):
        static.copy_(source)
        (static * 2 + 1).sum()
    before = static[3].item()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    return before, static[3].item()
def train():
    model = torch.nn.Sequential(torch.nn.LayerNorm(1024), torch.nn.GELU(), torch.nn.Dropout()).to("cuda")
    optimizer, steps = torch.optim.AdamW(model.parameters()), 0
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, pin_memory=True):
        optimizer.zero_grad()
        model(batch.to("cuda", non_blocking=True)).sum().backward()
        optimizer.step()
        steps += 1
    torch.cuda.synchronize()
    return steps
def timed():
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    values = torch.ones(1024, device="cuda")
    begin.record()
    for _ in range(100):
        values.add_(1)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
def shared():
    context = torch.multiprocessing.get_context("spawn")
    queue, tensor = context.Queue(), torch.arange(1 << 20, dtype=torch.float32).to("cuda")
    process = context.Process(target=child, args=(queue, tensor))
    process.start()
    answer = queue.get(timeout=60)
    process.join(20)
    return answer
if __name__ == "__main__":
    names = [graph, train, timed, shared, forked]
    print(json.dumps({"name": torch.cuda.get_device_name(0), **{each.__name__: each() for each in names}}))
"""


def environment(allocator: str) -> dict[str, str]:
    return {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]}


def check_sizes(output: str, total_bytes: int, allocator: str) -> None:
    answer: list[Any] = json.loads(output)
    total, pieces, error, memory, backend = answer
    assert total == total_bytes
    unit = SEGMENT_BYTES if allocator == "expandable" else 1
    assert pieces == total_bytes // unit * unit // PIECE_BYTES, "all of it can be had, and no more"
    assert allocator == "async" or f"total capacity of {total_bytes / share.GIB:.2f} GiB" in error
    assert memory == [total_bytes, total_bytes], "what it gave back is there again"
    assert backend == ("cudaMallocAsync" if allocator == "async" else "native")


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_alone_all_of_a_gpu_can_be_had(pytorch: Path, gpus: Path, allocator: str) -> None:
    check_sizes(share.run_alone(gpus, [pytorch, "-c", SIZES], environment(allocator)), GPU_BYTES, allocator)


@pytest.mark.parametrize("allocator", ALLOCATORS)
async def test_in_a_share_all_of_the_share_can_be_had(pytorch: Path, shares: share.Shares, allocator: str) -> None:
    pod = shares.add()
    check_sizes(await shares.run(pod, [pytorch, "-c", SIZES], environment(allocator)), share.SHARE_BYTES, allocator)


async def test_what_programs_do_with_a_gpu_works_in_a_share(
    pytorch: Path, shares: share.Shares, tmp_path: Path
) -> None:
    program = tmp_path / "work.py"
    program.write_text(WORK)
    answer = json.loads(await shares.run(shares.add(), [pytorch, program]))
    assert answer["name"] == "NVIDIA A100-SXM4-40GB"
    assert answer["graph"] == [0, 3], "a copy of a graph is done when the graph is launched"
    assert answer["train"] == 8
    assert answer["timed"] >= 1, "a hundred kernels of 10 microseconds"
    assert answer["shared"] == ["cuda", [0, 1, 2], share.SHARE_BYTES], "a tensor of another process"
    assert answer["forked"] == 0


def _look_on(gpus: Path) -> subprocess.Popen[str]:
    variables = {**os.environ, "SIMGPU_DIR": str(gpus), "LD_LIBRARY_PATH": str(simulated.BUILD)}
    return subprocess.Popen(
        [sys.executable, "-c", LOOKS], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@contextlib.asynccontextmanager
async def looking(gpus: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """A process outside of all shares that looks at the first GPU without a pause."""
    with container.finishing(_look_on(gpus)) as process:
        yield process


async def look(process: subprocess.Popen[str]) -> list[int]:
    """The most since the last look, and what it is now."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("look\n")
    process.stdin.flush()
    async with asyncio.timeout(60):
        return [int(word) for word in (await asyncio.to_thread(process.stdout.readline)).split()]


async def stop(process: subprocess.Popen[str]) -> list[int]:
    """What it says at its end."""
    output, errors = await asyncio.to_thread(process.communicate, "stop\n", timeout=60)
    assert process.returncode == 0, f"{output} {errors}"
    return [int(word) for word in output.split()]


@contextlib.asynccontextmanager
async def storms(
    pytorch: Path, shares: share.Shares, pod: str, allocator: str, count: int
) -> AsyncIterator[list[subprocess.Popen[str]]]:
    """Processes of one share that all allocate at random."""
    with contextlib.ExitStack() as stack:
        found = []
        for seed in range(count):
            process = shares.start(pod, [pytorch, "-c", STORM, str(seed)], environment(allocator))
            found.append(stack.enter_context(container.finishing(process)))
        for process in found:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert line == "ready\n", process.communicate(timeout=20)
        for process in found:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield found


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("allocator", ALLOCATORS)
async def test_processes_of_a_share_never_have_more_than_it(
    pytorch: Path, shares: share.Shares, gpus: Path, allocator: str, count: int
) -> None:
    pod = shares.add()
    async with looking(gpus) as looks, storms(pytorch, shares, pod, allocator, count) as running:
        await asyncio.sleep(SECONDS)
        answers = [await stop(process) for process in running]
        most, left = await look(looks)
    assert most <= share.SHARE_BYTES
    assert left == 0
    assert not any(shares.node.used(pod) or ())
    assert all(made > 10 for made, _ in answers)
    assert sum(refused for _, refused in answers) > 0, "they met the limit"


@pytest.mark.parametrize("allocator", ALLOCATORS)
async def test_a_share_is_resized_under_load(
    pytorch: Path, shares: share.Shares, gpus: Path, allocator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_resizing, "AGAIN_SECONDS", 0.01)
    node, dice, grown, shrunk = shares.node, random.Random(3), 0, 0
    pod = shares.add()

    async with looking(gpus) as looks, storms(pytorch, shares, pod, allocator, 2) as running:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            (given,) = node.allocations[0].shares
            most, _ = await look(looks)
            assert most <= given.memory_bytes
            if given.shrink_to_bytes is None and dice.random() < 0.5:
                node.change(
                    pod, memory_bytes=min(2 * share.SHARE_BYTES, given.memory_bytes + dice.randrange(share.GIB))
                )
                grown += 1
            elif given.shrink_to_bytes is None:
                node.change(pod, shrink_to_bytes=dice.randrange(share.GIB, given.memory_bytes))
            elif {resize.memory_bytes for resize in node.resizes} == {given.shrink_to_bytes}:
                node.change(pod, memory_bytes=given.shrink_to_bytes, shrink_to_bytes=None)
                shrunk += 1
        for process in running:
            await stop(process)
    assert grown > 0
    assert shrunk > 0
