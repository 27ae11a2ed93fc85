"""Prints sizes, the result of a kernel, how much could be allocated, and the error after that."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

import numpy  # noqa: E402
from numba import cuda  # noqa: E402

launches, piece_bytes = map(int, sys.argv[1:])


def memory() -> list[int]:
    return list(cuda.current_context().get_memory_info())


@cuda.jit
def add_one(values: Any) -> None:
    i = cuda.grid(1)
    if i < values.size:
        values[i] += 1


first = memory()
values, stream = cuda.to_device(numpy.arange(1024, dtype=numpy.float32)), cuda.stream()
begin, end = cuda.event(), cuda.event()
add_one[4, 256, stream](values)
begin.record(stream)
for _ in range(launches):
    add_one[4, 256, stream](values)
end.record(stream)
stream.synchronize()
elapsed = cuda.event_elapsed_time(begin, end)
back = values.copy_to_host()[:3].tolist()
del values
cuda.current_context().deallocations.clear()
held, error = [], None
try:
    while True:
        held.append(cuda.device_array(piece_bytes, dtype=numpy.uint8))
except Exception as failed:
    error = str(failed)
print(json.dumps([first, back, elapsed, len(held), memory()[0], error]))
