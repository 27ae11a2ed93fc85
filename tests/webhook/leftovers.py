"""Finds objects that stay in memory after their use."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable


def left_bytes(do: Callable[[], object]) -> int:
    """Return how many bytes stay allocated after a call."""
    tracemalloc.start()
    try:
        do()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
