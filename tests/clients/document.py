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
# Other programs

What programs of others show, tried with each release. Simulated: on [simulated GPUs](../simgpu/README.md), below which everything is
real. In a share: with the library and the arbiter that ship, in a share of {clients.SHARE_GIB} GiB of one {clients.MODEL}, while
a program of the share holds {clients.HELD_MIB} MiB. The tests are in `tests/clients`, and `make docs` makes this page of the same
table.

"""
COLUMNS = ("client", "version", "simulated, alone", "simulated, in a share", "on hardware", "besides")
CUDA = f"""
What can be allocated by programs that compile and launch, to the byte, on the same GPUs and in a share of {clients.SHARE_GIB} GiB, until
they are out of memory:

"""
TAIL = """
What a share does to programs in general is in [isolation.md](isolation.md).
"""


def version(client: clients.Client) -> str:
    """What was tried."""
    if client.version:
        return f"{client.version}, of {client.source}"
    lock = (ROOT / client.lock).read_text()
    match = re.search(rf"^{re.escape(client.name)}==(\S+)", lock, re.MULTILINE)
    assert match, f"{client.name} has no version, and is not in {client.lock} either"
    return f"{match[1]}, of {client.source}"


def row(client: clients.Client) -> tuple[str, ...]:
    """A line of the table."""
    shown = (f"`{client.alone}`", f"`{client.shared}`")
    return client.name, version(client), *shown, client.hardware, client.besides


def table(rows: Iterable[clients.Client]) -> str:
    """Of clients."""
    cells = [COLUMNS, ("---",) * len(COLUMNS), *map(row, rows)]
    return "".join(f"| {' | '.join(cell)} |\n".replace("|  |", "| |") for cell in cells)


def page() -> str:
    """The whole page."""
    return HEAD + table(clients.NVML) + CUDA + table(clients.CUDA) + TAIL


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
