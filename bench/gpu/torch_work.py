"""PyTorch on the GPU, as people write it: run in a process of its own by `frameworks` and by tests/gpu.

    torch_work.py train|infer|matmul|convolve SECONDS   prints {"rate": steps a second}
    torch_work.py memory BYTES   a share of so many bytes: what PyTorch sees, beyond it, and after

train is a step of a small transformer with its optimiser; infer the same forward, one sentence at a time, waited for,
whose time is launches; matmul is one large product after another (cuBLAS), convolve a step of training of a
convolutional network (cuDNN).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

WIDTH, LENGTH, BATCH, LAYERS = 1024, 256, 16, 4
MATRIX = 8192
IMAGES, PIXELS = 64, 128
WARM_STEPS = 5
CHUNK = 256 << 20


def steps(name: str) -> Callable[[], None]:
    """One step of the workload, which may only have been queued when it returns."""
    if name == "matmul":
        matrix = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)

        def multiply() -> None:
            torch.mm(matrix, matrix)

        return multiply
    if name == "convolve":
        network = _convolutional().cuda()
        images = torch.randn(IMAGES, 3, PIXELS, PIXELS, device="cuda")
        return _training(network, images)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).cuda()
    if name == "infer":
        model.eval()
        sentence = torch.randn(1, LENGTH, WIDTH, device="cuda")

        def infer() -> None:
            with torch.no_grad():
                model(sentence).sum().item()

        return infer
    return _training(model, torch.randn(BATCH, LENGTH, WIDTH, device="cuda"))


def _training(model: torch.nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters())

    def train() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimiser.step()

    return train


def _convolutional() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    channels = 3
    for wide in (64, 128, 256, 512):
        layers += [torch.nn.Conv2d(channels, wide, 3, stride=2, padding=1), torch.nn.BatchNorm2d(wide), torch.nn.ReLU()]
        layers += [torch.nn.Conv2d(wide, wide, 3, padding=1), torch.nn.BatchNorm2d(wide), torch.nn.ReLU()]
        channels = wide
    return torch.nn.Sequential(*layers)


def rate(name: str, seconds: float) -> dict[str, float]:
    """Steps a second; begins when a line comes, so that several can begin together."""
    step = steps(name)
    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    begun, done = time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        step()
        done += 1
        if done % 8 == 0:  # no further ahead than a program that reads its loss now and then
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return {"rate": done / (time.monotonic() - begun)}


def memory(limit: int) -> dict[str, object]:
    """Fill the share, meet its end as an exception that programs catch, free, and fill it again."""
    free, total = torch.cuda.mem_get_info()
    filled: list[int] = []
    raised = []
    for _ in range(2):
        held: list[torch.Tensor] = []
        try:
            while sum(map(len, held)) <= limit:
                held.append(torch.empty(CHUNK, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError as error:
            raised.append(type(error).__name__)
        filled.append(sum(map(len, held)))
        del held
        torch.cuda.empty_cache()
    return {"free": free, "total": total, "filled": filled, "raised": raised}


if __name__ == "__main__":
    what, number = sys.argv[1], float(sys.argv[2])
    answer = memory(int(number)) if what == "memory" else rate(what, number)
    sys.stdout.write(json.dumps(answer) + "\n")
