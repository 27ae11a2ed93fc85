"""GPUNode JSON to and from `GpuNode`.

Reading is tolerant: an invalid entry is left out, with a sentence in `problems`. The GPUs that an invalid allocation
may hold are not handed out: those that it names, or all of the node's if it names none, read as unhealthy. Writing
loses nothing: `to_spec` of what `read` returned contains the invalid allocations, untouched.

gpunode_document   the whole object, and the entries of status.gpus
allocations        the entries of spec.allocations, and their shares
entry_fields       the fields of all entries: numbers, texts, times
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
