"""Prints how much of a GPU can be allocated in pieces."""

from __future__ import annotations

import json
import sys

import torch

torch.zeros(1, device="cuda")
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.empty_cache()
held, error = [], None
try:
    while True:
        held.append(torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as failed:
    error = str(failed)
pieces = len(held)
del held
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(json.dumps([total, pieces, error, torch.cuda.mem_get_info(), torch.cuda.get_allocator_backend()]))
