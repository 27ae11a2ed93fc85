"""The map of processes that are registered with the arbiter, which the kernel program reads. Used in the arbiter's
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from deviceplugin.denial import kernel, program

RENEW_SECONDS: Final = 30.0
# How long only registered processes get a GPU while no arbiter runs. After that, every process does. An upgrade takes
# less; a node where the option or gpushare was removed does not stay locked.
AWAY_SECONDS: Final = 600.0
_NANOSECONDS: Final = 10**9
MAX: Final = 1 << 16

Who = tuple[int, int]  # a process: pid and start ticks


class RegisteredMap:
    """The map behind a descriptor. Errors of the kernel raise OSError."""

    def __init__(self, descriptor: int, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._map = kernel.Map(descriptor, key_bytes=program.KEY.size, value_bytes=program.VALUE.size)
        self._clock_ns = clock_ns

    def renew(self) -> None:
        """Let the arbiter count as running for another AWAY_SECONDS."""
        until = self._clock_ns() + round(AWAY_SECONDS * _NANOSECONDS)
        self._map.put(program.KEY.pack(program.ARBITER_KEY), program.VALUE.pack(until, 0))

    def add(self, pid: int, start_ticks: int) -> None:
        """Register a process, as the program that next opens a device file."""
        self._map.put(program.KEY.pack(pid), program.VALUE.pack(start_ticks, 0))

    def drop(self, pid: int) -> None:
        """Remove a process that has ended or become another program."""
        self._map.drop(program.KEY.pack(pid))

    def replace(self, processes: Iterable[Who]) -> None:
        """Register exactly these processes. Those that were registered already keep their program."""
        wanted = dict(processes)
        for key in self._map.every_key() - {program.KEY.pack(number) for number in (program.ARBITER_KEY, *wanted)}:
            self._map.drop(key)
        for pid, start_ticks in wanted.items():
            value = self._map.get(program.KEY.pack(pid))
            if value is None or program.VALUE.unpack(value)[0] != start_ticks:
                self.add(pid, start_ticks)


def make() -> int:
    """Create an empty map, and return its descriptor."""
    return kernel.make_map("gpushare", key_bytes=program.KEY.size, value_bytes=program.VALUE.size, most=MAX)
