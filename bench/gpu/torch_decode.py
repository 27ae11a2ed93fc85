"""A language model that writes, a word at a time, as a server runs it: a process of its own, for `pairs`.

    torch_decode.py REQUESTS SECONDS   prints {"rate": words a second, "p50_ms": …, "p99_ms": …} of a step

A decoder with random weights writes for so many requests at once. Each step reads all weights and the keys and values
of what was written before: that is bound by memory and by launches, as serving is, and not by arithmetic.
"""

from __future__ import annotations

import json
import sys
import time

import torch

WIDTH, HEADS, LAYERS, WORDS = 2048, 16, 12, 32000
CONTEXT = 1024  # words that were written before
WARM_STEPS = 20


class Block(torch.nn.Module):
    """One layer, which remembers keys and values of the words before."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.project, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        shape = (2, requests, HEADS, CONTEXT, WIDTH // HEADS)
        self.register_buffer("remembered", torch.randn(shape))

    def forward(self, word: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """word: [requests, 1, WIDTH]; place: where its key and value go, as a tensor of one index."""
        requests = word.shape[0]
        parts = self.project(self.before(word)).view(requests, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.remembered.index_copy_(3, place, parts[1:])
        keys, values = self.remembered
        seen = torch.nn.functional.scaled_dot_product_attention(parts[0], keys, values)
        word = word + self.out(seen.transpose(1, 2).reshape(requests, 1, WIDTH))
        return word + self.narrow(torch.nn.functional.gelu(self.wide(self.between(word))))


class Decoder(torch.nn.Module):
    """Words in, words out."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(requests) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """words: [requests, 1]; the next ones, in the same shape."""
        state = self.embedding(words)
        for block in self.blocks:
            state = block(state, place)
        return self.head(state).argmax(-1)


def decode(requests: int, seconds: float, device: str = "cuda") -> dict[str, float]:
    """Writes for so long; begins when a line comes, so that several can begin together."""
    model = Decoder(requests).to(device, torch.bfloat16).eval()
    words = torch.zeros(requests, 1, dtype=torch.long, device=device)
    places = torch.arange(CONTEXT, device=device).split(1)
    took: list[float] = []

    @torch.no_grad()
    def step(number: int) -> None:
        nonlocal words
        begun = time.monotonic()
        words = model(words, places[number % CONTEXT])
        words.tolist()  # a server sends each word
        took.append(time.monotonic() - begun)

    for number in range(WARM_STEPS):
        step(number)
    took.clear()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    begun, number = time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        step(number)
        number += 1
    lasted = time.monotonic() - begun
    took.sort()
    p50, p99 = (1000 * took[min(len(took) - 1, int(part * len(took)))] for part in (0.5, 0.99))
    return {"rate": requests * number / lasted, "p50_ms": p50, "p99_ms": p99}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(decode(int(sys.argv[1]), float(sys.argv[2]))) + "\n")
