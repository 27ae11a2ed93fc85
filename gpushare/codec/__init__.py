"""GPUNode JSON to and from `GpuNode`.

Reading is tolerant: an entry that is invalid is set aside with a sentence in `problems`. What a senseless
allocation may hold is not given out: the GPUs it names, or all of the node's if it names none, read as unhealthy.
Writing loses nothing: `to_spec` of what `read` returned has the senseless allocations in it, untouched.

gpunode_document   the whole object
status_gpus        the entries of status.gpus
allocations        those of spec.allocations, and shares by themselves
entry_fields       what every entry is made of: numbers, texts, times
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
