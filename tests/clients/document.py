"""Writes docs/compatibility.md: `python -m tests.clients.document docs/compatibility.md`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.clients import clients

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
HEAD = f"""\
# Compatibility

These programs are tested in a share with each release, on [simulated GPUs](../simgpu/README.md):
the library, the arbiter and everything else above the driver's C interface are real. The GPU is an
{clients.MODEL}, and the share has {clients.SHARE_GIB} GiB. The tests are in
`tests/clients`, and `make docs` writes this page.

## Programs that show a GPU

They show the size of the share, while one of its programs holds {clients.HELD_MIB} MiB:

"""
COLUMNS = ("client", "version", "whole GPU", "in a share", "on hardware", "notes")
CUDA = f"""
## Programs that compute

They compile, launch, and allocate to the byte until they are out of memory, here at {clients.SHARE_GIB} GiB:

"""
TAIL = """
Programs that gpushare cannot limit, and calls that it refuses, are in [isolation.md](isolation.md).
"""


def version(client: clients.Client) -> str:
    """Return the version that was tested."""
    if client.version:
        return f"{client.version}, {client.source}"
    lock = (ROOT / client.lock).read_text()
    match = re.search(rf"^{re.escape(client.name)}==(\S+)", lock, re.MULTILINE)
    assert match, f"{client.name} has no version, and is not in {client.lock} either"
    return f"{match[1]}, {client.source}"


def row(client: clients.Client) -> tuple[str, ...]:
    """Format a row of the table."""
    shown = (f"`{client.alone}`", f"`{client.shared}`")
    return client.name, version(client), *shown, client.hardware, client.besides


def table(rows: Iterable[clients.Client]) -> str:
    """Format a table of clients."""
    cells = [COLUMNS, ("---",) * len(COLUMNS), *map(row, rows)]
    return "".join(f"| {' | '.join(cell)} |\n".replace("|  |", "| |") for cell in cells)


def page() -> str:
    """Format the whole page."""
    return HEAD + table(clients.NVML) + CUDA + table(clients.CUDA) + TAIL


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
