"""The processes that are registered with the arbiter, where the kernel looks them up. For the arbiter's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from deviceplugin.denial import kernel, program

BEAT_SECONDS: Final = 30.0
# For so long nobody but those who are registered already gets at a GPU without an arbiter; after that it is as if
# nobody had ever been denied one. An upgrade takes less, and who turns this off, or takes gpushare away, leaves no trap
# behind.
AWAY_SECONDS: Final = 600.0
_NANOSECONDS: Final = 10**9
MAX: Final = 1 << 16

Who = tuple[int, int]  # a process: its pid and when it started, in the kernel's ticks


class RegisteredMap:
    """By the descriptor of the map that the program looks into. What the kernel refuses raises OSError."""

    def __init__(self, descriptor: int, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._map = kernel.Map(descriptor, key_bytes=program.KEY.size, value_bytes=program.VALUE.size)
        self._clock_ns = clock_ns

    def beat(self) -> None:
        """An arbiter is there, and will be taken to be for AWAY_SECONDS."""
        until = self._clock_ns() + round(AWAY_SECONDS * _NANOSECONDS)
        self._map.put(program.KEY.pack(program.ARBITER_KEY), program.VALUE.pack(until, 0))

    def add(self, pid: int, start_ticks: int) -> None:
        """A process registers, as whatever program it is when it next opens a device file."""
        self._map.put(program.KEY.pack(pid), program.VALUE.pack(start_ticks, 0))

    def drop(self, pid: int) -> None:
        """It has ended, or is another program."""
        self._map.drop(program.KEY.pack(pid))

    def keep(self, processes: Iterable[Who]) -> None:
        """These are registered and no others; those that were before are so as the program that they were."""
        wanted = dict(processes)
        for key in self._map.every_key() - {program.KEY.pack(number) for number in (program.ARBITER_KEY, *wanted)}:
            self._map.drop(key)
        for pid, start_ticks in wanted.items():
            value = self._map.get(program.KEY.pack(pid))
            if value is None or program.VALUE.unpack(value)[0] != start_ticks:
                self.add(pid, start_ticks)


def make() -> int:
    """The descriptor of a new map, in which nobody is."""
    return kernel.make_map("gpushare", key_bytes=program.KEY.size, value_bytes=program.VALUE.size, most=MAX)
