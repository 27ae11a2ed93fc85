"""GPUNode JSON to and from `GpuNode`.

Reading is tolerant: an invalid entry is skipped, with a sentence in `problems`. The GPUs that an invalid allocation
names (all of the node's if it names none) read as unhealthy, so that what it may hold is not given to another pod.
Nothing is lost in writing: `to_spec` of the result of `read` still has the invalid allocations, unchanged.

gpunode_document   the whole object
status_gpus        the entries of status.gpus
allocations        the entries of spec.allocations, and shares by themselves
entry_fields       the fields of entries: numbers, texts, times
"""

from __future__ import annotations

from gpushare.codec.allocations import read_shares, shares_text
from gpushare.codec.entry_fields import format_time, parse_time
from gpushare.codec.gpunode_document import read, to_document, to_spec, to_status

__all__ = [
    "format_time",
    "parse_time",
    "read",
    "read_shares",
    "shares_text",
    "to_document",
    "to_spec",
    "to_status",
]
