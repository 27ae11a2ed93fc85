"""Allocates and frees at random until it is stopped; prints how often it reached the limit."""

from __future__ import annotations

import random
import sys
import threading

import torch

random.seed(int(sys.argv[1]))
torch.zeros(1, device="cuda")
held, made, refused, stop = [], 0, 0, threading.Event()


def stop_at_next_line() -> None:
    sys.stdin.readline()
    stop.set()


print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=stop_at_next_line, daemon=True).start()
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
