"""Static SM partitions: a GPU's multiprocessors in equal parts, one for each share with the isolation mps.

A daemon cuts them in whole chunks while it has no clients, which is so only before its first share starts. They last
until it ends; the next daemon gives them other names. So a container does not get a name but a directory, read-only,
with a file that has the present one. The directories are the only record of who has which partition.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.host import records
from deviceplugin.mps.supervisor import ControlError
from gpushare import allocation, contract
from gpushare.allocation import Allocation
from gpushare.refusal import Refusal

_SHORT_UUID: Final = 12  # characters of it in the daemon's list
_COLUMNS: Final = 7  # GPU, partition, free and used chunks, free and used multiprocessors, clients
_NO_ID: Final = "-"  # in the row of the GPU itself

Send = Callable[[str], Awaitable[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class SmPartition:
    """A partition. name: as clients give it in CUDA_MPS_SM_PARTITION. is_used: whether it has clients."""

    name: str
    chunks: int
    is_used: bool


def listed(answer: str, uuid: str) -> tuple[int, list[SmPartition]]:
    """Return a GPU's chunks and partitions from the answer to `lspart`. Raises ControlError for another answer."""
    chunks, found = None, []
    for line in answer.splitlines():
        columns = line.split()
        if len(columns) != _COLUMNS or not uuid.startswith(columns[0]) or len(columns[0]) < _SHORT_UUID:
            continue
        try:
            if columns[1] == _NO_ID:
                chunks = int(columns[2]) + int(columns[3])
            else:
                found.append(SmPartition(f"{uuid}/{columns[1]}", int(columns[3]), columns[6] == "Yes"))
        except ValueError:
            break
    if chunks is None:
        raise ControlError(f"the MPS daemon lists no SM partitions of {uuid}: {answer.strip() or 'no answer'}")
    return chunks, found


async def cut(send: Send, uuid: str, count: int) -> list[SmPartition]:
    """Have the daemon cut the GPU into equal partitions, and return them. Raises ControlError."""
    chunks, there = listed(await send("lspart"), uuid)
    if len(there) == count:
        return there
    if chunks < count:
        raise ControlError(f"{uuid} has {chunks} chunks of multiprocessors: lower smPartitions from {count}")
    for partition in there:  # an agent that ended meanwhile has left some
        await send(f"sm_partition rm {partition.name.replace('/', ' ')}")
    answer = ""
    for _ in range(count):
        answer = await send(f"sm_partition add {uuid} {chunks // count}")
    _, there = listed(await send("lspart"), uuid)
    if len(there) != count:
        raise ControlError(f"{uuid} has {len(there)} of {count} SM partitions: {answer}")
    return there


def renew(directory: Path, there: Sequence[SmPartition]) -> None:
    """Give the shares whose partition is gone, as their daemon has ended, one of the new daemon's. Blocking."""
    holders = _holders(directory)
    free = [partition.name for partition in there if partition.name not in holders.values()]
    names = {partition.name for partition in there}
    for share, _ in sorted((share, name) for share, name in holders.items() if name not in names):
        _write(directory / share, free.pop(0) if free else "")


def take(directory: Path, share: str, there: Sequence[SmPartition], *, alive: Collection[str]) -> Path | Refusal:
    """Give the share a partition, unless it has one. Return its directory. Blocking.

    alive: the shares of the ledger, and those that may be missing in it. Others lose theirs once it has no clients.
    """
    own, used = directory / share, {partition.name for partition in there if partition.is_used}
    for other, name in _holders(directory).items():
        if other not in alive and other != share and name not in used:
            shutil.rmtree(directory / other)
    holders = _holders(directory)
    if not holders.get(share):
        taken = used.union(holders.values())
        free = next((partition.name for partition in there if partition.name not in taken), None)
        if free is None:
            return Refusal(f"all {len(there)} SM partitions are in use: a program of an ended pod may still run")
        _write(own, free)
    return own


def key(slot: str) -> str:
    """Return the name of the directory of the shares in a slot."""
    return hashlib.sha256(slot.encode()).hexdigest()[:32]


def keys(allocations: Collection[Allocation]) -> set[str]:
    return {key(allocation.slot(entry, share)) for entry in allocations for share in entry.shares}


def _holders(directory: Path) -> dict[str, str]:
    """Return the names of the partitions, by share; "" for a share that lost its own."""
    return {path.parent.name: path.read_text() for path in directory.glob(f"*/{contract.MPS_PARTITION_NAME}")}


def _write(directory: Path, name: str) -> None:
    records.write_file(directory / contract.MPS_PARTITION_NAME, name)
