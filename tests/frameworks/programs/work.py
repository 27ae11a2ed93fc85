"""Typical GPU work: training, graph capture, timing, sharing with a process, forking."""

from __future__ import annotations

import json
import os
from typing import Any

import torch


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, n: int) -> torch.Tensor:
        return torch.full((1024,), float(n))


def child(queue: Any, tensor: torch.Tensor) -> None:
    queue.put((tensor.device.type, tensor.cpu()[:3].tolist(), torch.cuda.mem_get_info()[1]))


def forked() -> int:
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            os._exit(0 if "re-initialize CUDA in forked" in str(error) else 1)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def graph() -> tuple[float, float]:
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


def train() -> int:
    model = torch.nn.Sequential(torch.nn.LayerNorm(1024), torch.nn.GELU(), torch.nn.Dropout()).to("cuda")
    optimizer, steps = torch.optim.AdamW(model.parameters()), 0
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, pin_memory=True):
        optimizer.zero_grad()
        model(batch.to("cuda", non_blocking=True)).sum().backward()
        optimizer.step()
        steps += 1
    torch.cuda.synchronize()
    return steps


def timed() -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    values = torch.ones(1024, device="cuda")
    begin.record()
    for _ in range(100):
        values.add_(1)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def shared() -> Any:
    context = torch.multiprocessing.get_context("spawn")
    queue, tensor = context.Queue(), torch.arange(1 << 20, dtype=torch.float32).to("cuda")
    process = context.Process(target=child, args=(queue, tensor))
    process.start()
    answer = queue.get(timeout=60)
    process.join(20)
    return answer


if __name__ == "__main__":
    names = [graph, train, timed, shared, forked]
    print(json.dumps({"name": torch.cuda.get_device_name(0), **{function.__name__: function() for function in names}}))
