"""PyTorch workloads, cut into pieces that `torch_worker` can time.

| workload | unit of its rate | bound by |
|---|---|---|
| train | a step of training of a small transformer | launches, arithmetic |
| infer | the same, one sentence forward, waited for | launches |
| matmul | a product of two matrices (cuBLAS) | arithmetic |
| convolve | a step of training of a convolutional network (cuDNN) | arithmetic, memory |
| attention | attention of long sequences, forward and backward | arithmetic |
| small | an operation on a few numbers | launches |
| graph | a replay of a graph of twenty operations | launches |
| capture | a graph captured, replayed and checked | the host |
| compile | a step of a compiled network; compiling takes a minute | |
| decode, generate | a token of a language model (`torch_decoders`) | memory, launches |

Models are made on the device, and none takes more than 8 GiB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from bench.gpu.programs import torch_decoders

WIDTH, LENGTH, BATCH, LAYERS = 1024, 256, 16, 4
MATRIX = 8192
IMAGES, PIXELS = 64, 128
NUMBERS = 1024
GRAPH_OPERATIONS = 20
STEPS = 8  # between two waits: like a program that reads its loss now and then

Mark = Callable[[], None]
Step = Callable[[], None]


@dataclass
class Workload:
    """A workload. `run` does a piece and calls its argument after every `amount` units that the GPU has finished."""

    run: Callable[[Mark], None]
    amount: int
    failures: list[str] = field(default_factory=list)  # pieces that failed without ending the workload


def prepare(name: str, requests: int, device: str) -> Workload:
    """Build a workload. Raises KeyError for an unknown name."""
    return WORKLOADS[name](requests, device)


def synchronize(device: str) -> None:
    """Wait for all queued work."""
    if device == "cuda":
        torch.cuda.synchronize()


def _queued(step: Step, device: str, steps: int = STEPS) -> Workload:
    """Queue some steps, then wait for them."""

    def run(mark: Mark) -> None:
        for _ in range(steps):
            step()
        synchronize(device)
        mark()

    return Workload(run, steps)


def _waited(step: Step, amount: int = 1) -> Workload:
    """Run a step that waits for its own result."""

    def run(mark: Mark) -> None:
        step()
        mark()

    return Workload(run, amount)


def _transformer(device: str) -> torch.nn.Module:
    with torch.device(device):
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True)
        return torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def _train(_: int, device: str) -> Workload:
    batch = torch.randn(BATCH, LENGTH, WIDTH, device=device)
    return _queued(_training(_transformer(device), batch, device), device)


def _training(model: torch.nn.Module, batch: torch.Tensor, device: str) -> Step:
    optimiser = torch.optim.AdamW(model.parameters())

    def train() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimiser.step()

    return train


def _infer(_: int, device: str) -> Workload:
    model = _transformer(device).eval()
    sentence = torch.randn(1, LENGTH, WIDTH, device=device)

    @torch.no_grad()
    def infer() -> None:
        model(sentence).sum().item()

    return _waited(infer)


def _matmul(_: int, device: str) -> Workload:
    matrix = torch.randn(MATRIX, MATRIX, device=device, dtype=torch.bfloat16)
    product = torch.empty_like(matrix)
    return _queued(lambda: torch.mm(matrix, matrix, out=product), device)


def _convolve(_: int, device: str) -> Workload:
    layers: list[torch.nn.Module] = []
    channels = 3
    with torch.device(device):
        for wide in (64, 128, 256, 512):
            for inner, stride in ((channels, 2), (wide, 1)):
                layers += [torch.nn.Conv2d(inner, wide, 3, stride=stride, padding=1), torch.nn.BatchNorm2d(wide)]
                layers.append(torch.nn.ReLU())
            channels = wide
        images = torch.randn(IMAGES, 3, PIXELS, PIXELS)
        return _queued(_training(torch.nn.Sequential(*layers), images, device), device)


def _attention(_: int, device: str) -> Workload:
    shape = (3, 4, 16, 4096, 128)
    parts = torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)

    def attend() -> None:
        parts.grad = None
        torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).sum().backward()

    return _queued(attend, device)


def _small(_: int, device: str) -> Workload:
    numbers = torch.zeros(NUMBERS, device=device)
    return _queued(lambda: numbers.add_(1), device, 100)


def _captured(source: torch.Tensor, target: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Capture a graph that copies, and then adds one several times."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            target.copy_(source)
            for _ in range(GRAPH_OPERATIONS - 1):
                target.add_(1)
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def _graph(_: int, device: str) -> Workload:
    source = torch.zeros(NUMBERS, device=device)
    target = torch.empty_like(source)
    return _queued(_captured(source, target).replay, device, 20)


def _capture(_: int, device: str) -> Workload:
    source = torch.tensor([3.0] * NUMBERS).to(device)
    target = torch.empty_like(source)
    works = (torch.ones(1, device=device) + 1).item() == 2  # a simulated GPU does not add
    wanted = 3.0 + (GRAPH_OPERATIONS - 1 if works else 0)

    def run(mark: Mark) -> None:
        target.zero_()
        try:
            graph = _captured(source, target)
            graph.replay()
            if (found := target[-1].item()) != wanted:
                workload.failures.append(f"a replay gave {found}, not {wanted}")
        except RuntimeError as error:
            workload.failures.append(str(error))
            torch.cuda.synchronize()
        mark()

    workload = Workload(run, 1)
    return workload


def _compile(_: int, device: str) -> Workload:
    with torch.device(device):
        model = torch.compile(torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU()))
        batch = torch.randn(BATCH, WIDTH)
    return _queued(lambda: model(batch), device)


def _decode(requests: int, device: str) -> Workload:
    return _waited(torch_decoders.decoder(requests, device), requests)


def _generate(requests: int, device: str) -> Workload:
    return Workload(torch_decoders.generator(requests, device), requests)


WORKLOADS: Mapping[str, Callable[[int, str], Workload]] = {
    "train": _train,
    "infer": _infer,
    "matmul": _matmul,
    "convolve": _convolve,
    "attention": _attention,
    "small": _small,
    "graph": _graph,
    "capture": _capture,
    "compile": _compile,
    "decode": _decode,
    "generate": _generate,
}
