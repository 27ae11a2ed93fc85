"""The shared pages: limits, which only the arbiter writes, and the ledger, which the container's processes write too.

Both are memfds. They are sealed against shrinking: a page truncated under the arbiter's mapping would kill it, and
files on a tmpfs could be truncated. F_SEAL_FUTURE_WRITE leaves the arbiter's mapping of the limits the only writable
one, even for root in the container, and F_SEAL_SEAL prevents further seals.

Every write stores one aligned word, so no reader sees half a value.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Sequence
from typing import Any, Final

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.timetable import NO_TURN, LaunchSlot
from gpushare import contract

_HEADER: Final = struct.Struct(contract.LIMITS_HEADER)
_RECORD: Final = struct.Struct(contract.LIMITS_RECORD)
_MEASURED_OFFSET: Final = 32  # the overhead in a record; the context's bytes follow
_TURN_OFFSET: Final = 48  # the launch slot in a record: begin and length in one word
_F_SEAL_FUTURE_WRITE: Final = 0x10
_KEEP_SIZE: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_BARRIER: Final = threading.Lock()
LEDGER_NAME: Final = "gpushare-ledger"
MAPPED_LEDGER: Final = f"/memfd:{LEDGER_NAME} (deleted)"  # a mapped ledger's name in /proc/PID/maps
LIMITS_NAME: Final = "gpushare-limits"


class PagesError(Exception):
    """The file is not the expected ledger, or the pages are closed."""


@dataclasses.dataclass(frozen=True, slots=True)
class LimitsRecord:
    """A limits page's content for one GPU; `gpu` is the raw UUID."""

    gpu: bytes
    memory_bytes: int
    request_percent: int
    limit_percent: int
    overhead_bytes: int
    context_bytes: int
    turn_begin_permille: int = 0
    turn_permille: int = 0
    burst_bytes: int = 0


class LimitsPage:
    """The limits page of a share. Processes get `descriptor`."""

    def __init__(self, grants: Sequence[tenant.Grant], *, slot_count: int, burst_bytes: int = 0) -> None:
        self.descriptor = os.memfd_create(LIMITS_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, contract.PAGE_SIZE)
        self._map = mmap.mmap(self.descriptor, contract.PAGE_SIZE)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _KEEP_SIZE | _F_SEAL_FUTURE_WRITE)
        # A ledger that was taken over with more slots has charges where other ledgers have the certain bytes.
        self.certain_slot = contract.CERTAIN_SLOT if slot_count <= contract.CERTAIN_SLOT else 0
        self._map[: _HEADER.size] = _HEADER.pack(len(grants), slot_count, contract.PAGES_LAYOUT, self.certain_slot)
        self.slot_count = slot_count
        self._measured = [(0, 0)] * len(grants)
        self._turns = [NO_TURN] * len(grants)
        self.write(grants, burst_bytes)

    def write(self, grants: Sequence[tenant.Grant], burst_bytes: int = 0) -> None:
        """Write the grants, which must name the same GPUs as before. Each memory limit changes atomically.

        burst_bytes: up to which the limits may be raised when a process asks; 0: they are not.

        After this returns, a process that charges memory sees the new limit, or its bytes are already in the ledger.
        """
        for position, grant in enumerate(grants):
            start = _HEADER.size + position * contract.LIMITS_RECORD_SIZE
            amounts = (grant.memory_bytes, grant.request_percent, grant.limit_percent)
            turn = dataclasses.astuple(self._turns[position])
            packed = _RECORD.pack(tenant.raw_uuid(grant.uuid), *amounts, *self._measured[position], *turn, burst_bytes)
            for offset in range(0, _RECORD.size, 8):
                self._store(start + offset, int.from_bytes(packed[offset : offset + 8], "little"))
        # A CPU may delay these stores beyond later instructions, but not beyond the atomic instruction of a lock.
        with _BARRIER:
            pass

    def set_overhead(self, gpu: int, overhead_bytes: int) -> None:
        self._set_measured(gpu, (overhead_bytes, self._measured[gpu][1]))

    def set_context_bytes(self, gpu: int, context_bytes: int) -> None:
        """Write the bytes to charge for a CUDA context on a GPU before it is created."""
        self._set_measured(gpu, (self._measured[gpu][0], context_bytes))

    def set_launch_slot(self, gpu: int, turn: LaunchSlot) -> None:
        """Write when the share launches on a GPU while no arbiter runs."""
        if turn != self._turns[gpu]:
            self._turns[gpu] = turn
            place = _HEADER.size + gpu * contract.LIMITS_RECORD_SIZE + _TURN_OFFSET
            self._store(place, turn.begin_permille | turn.permille << 32)

    def overhead_bytes(self) -> tuple[int, ...]:
        """Return the bytes held beyond the charges, by GPU in the order of the grants."""
        return tuple(overhead for overhead, _ in self._measured)

    def read(self) -> tuple[LimitsRecord, ...]:
        """Return the records by GPU, in the order of the grants. Raises PagesError once the page is closed."""
        return _records(self._map, len(self._measured))

    def set_slot_count(self, slot_count: int) -> None:
        self.slot_count = slot_count
        word = ctypes.c_uint32.from_buffer(self._map, 4)
        word.value = slot_count
        del word

    def close(self) -> None:
        """Unmap the page and close its descriptor. Processes keep their mappings."""
        self._map.close()
        os.close(self.descriptor)

    def _set_measured(self, gpu: int, measured: tuple[int, int]) -> None:
        self._measured[gpu] = measured
        start = _HEADER.size + gpu * contract.LIMITS_RECORD_SIZE + _MEASURED_OFFSET
        for number, value in enumerate(measured):
            self._store(start + 8 * number, value)

    def _store(self, place: int, value: int) -> None:
        word = ctypes.c_uint64.from_buffer(self._map, place)
        word.value = value
        del word


class LimitsView:
    """A read-only view of the arbiter's limits page. It owns `descriptor`."""

    def __init__(self, descriptor: int, gpu_count: int) -> None:
        self._descriptor, self._gpu_count = descriptor, gpu_count
        self._map = mmap.mmap(descriptor, contract.PAGE_SIZE, prot=mmap.PROT_READ)
        self.certain_slot = int(_unpack(_HEADER, self._map)[3])

    @property
    def slot_count(self) -> int:
        """The number of slots to add up. Raises PagesError once the page is closed."""
        return int(_unpack(_HEADER, self._map)[1])

    def read(self) -> tuple[LimitsRecord, ...]:
        return _records(self._map, self._gpu_count)

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)


def _unpack(layout: struct.Struct, page: mmap.mmap, place: int = 0) -> tuple[Any, ...]:
    try:
        return layout.unpack_from(page, place)
    except ValueError as error:
        raise PagesError("the limits are closed") from error


def _records(page: mmap.mmap, gpu_count: int) -> tuple[LimitsRecord, ...]:
    places = [_HEADER.size + gpu * contract.LIMITS_RECORD_SIZE for gpu in range(gpu_count)]
    return tuple(LimitsRecord(*_unpack(_RECORD, page, place)) for place in places)


class Ledger:
    """The ledger pages of one share, one per GPU. Processes get `descriptor`."""

    def __init__(self, descriptor: int, gpu_count: int) -> None:
        self.descriptor, self.gpu_count = descriptor, gpu_count
        self._map = mmap.mmap(descriptor, gpu_count * contract.PAGE_SIZE)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def make(cls, gpu_count: int) -> Ledger:
        descriptor = os.memfd_create(LEDGER_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, gpu_count * contract.PAGE_SIZE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _KEEP_SIZE)
        return cls(descriptor, gpu_count)

    @classmethod
    def reopen(cls, path: os.PathLike[str], gpu_count: int, device_inode: tuple[int, int]) -> Ledger:
        """Open the ledger that a process has mapped. Raises OSError, and PagesError if it is not the arbiter's."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        is_ours = (
            (status.st_dev, status.st_ino) == device_inode
            and status.st_size == gpu_count * contract.PAGE_SIZE
            and fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == _KEEP_SIZE
        )
        if not is_ours:
            os.close(descriptor)
            raise PagesError(f"{path} is not the ledger")
        return cls(descriptor, gpu_count)

    @property
    def device_inode(self) -> tuple[int, int]:
        """The device and inode, which identify the file while it exists."""
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino

    def used_bytes(self, slot_count: int) -> tuple[int, ...]:
        """Return the sum of the first slots, by GPU in the order of the grants."""
        starts = [gpu * contract.LEDGER_SLOTS for gpu in range(self.gpu_count)]
        return tuple(sum(self._words[start : start + slot_count]) for start in starts)

    def slot_bytes(self, slot: int) -> tuple[int, ...]:
        """Return one slot's charges, by GPU in the order of the grants. Raises PagesError once the ledger is closed."""
        return tuple(self._word(gpu * contract.LEDGER_SLOTS + slot) for gpu in range(self.gpu_count))

    def certain(self, slot: int, gpu: int) -> tuple[int, int]:
        """Return a slot's certain bytes on a GPU, and its count of announced decreases. Raises PagesError."""
        word = self._word(gpu * contract.LEDGER_SLOTS + slot + contract.CERTAIN_SLOT)
        return word % (1 << contract.CERTAIN_BITS), word >> contract.CERTAIN_BITS

    def clear(self, slot: int, *, with_certain: bool = True) -> int:
        """Set a slot's charges and certain bytes to zero on each GPU. Return the charges that it had."""
        freed = 0
        for gpu in range(self.gpu_count):
            position = gpu * contract.LEDGER_SLOTS + slot
            if with_certain and slot < contract.CERTAIN_SLOT:
                self._words[position + contract.CERTAIN_SLOT] = 0
            freed += self._words[position]
            self._words[position] = 0
        return freed

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.descriptor)

    def _word(self, position: int) -> int:
        try:
            return self._words[position]
        except ValueError as error:
            raise PagesError("the ledger is closed") from error
