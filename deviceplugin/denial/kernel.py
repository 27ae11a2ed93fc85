"""The system call bpf(2): programs for the devices of a cgroup, their map of registered processes, and their pins.

libc has no function for it, so it is called by number, with the layouts of `union bpf_attr` in linux/bpf.h. All
functions raise OSError with the kernel's error.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from deviceplugin.denial import program

_NUMBERS: Final = {"x86_64": 321, "aarch64": 280}
_ATTRIBUTES_BYTES: Final = 128
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _NEXT_KEY, _LOAD, _PIN, _GET, _ATTACH = range(9)
_INFO, _QUERY = 15, 16
_HASH: Final = 1  # BPF_MAP_TYPE_HASH
_NO_PREALLOC: Final = 1  # BPF_F_NO_PREALLOC
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE = 15, 6  # BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE
_ALLOW_MULTI, _REPLACE = 2, 4  # BPF_F_ALLOW_MULTI, BPF_F_REPLACE
MAX_PROGRAMS: Final = 64  # the kernel's maximum per cgroup
_LOG_BYTES: Final = 1 << 16
_INSTRUCTION_BYTES: Final = 8
_INFO_START: Final = struct.Struct("<II8s")  # type, id and tag in struct bpf_prog_info

_STATFS_BYTES: Final = 256  # more than struct statfs, which begins with the type
_BPF_FS_MAGIC: Final = 0xCAFE4A11

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Call the kernel. attributes: a buffer if the kernel answers in it."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(f"the number of bpf(2) is unknown for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES) if isinstance(attributes, bytes) else attributes
    answer: int = _libc.syscall(number, command, buffer, _ATTRIBUTES_BYTES)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer


class Map:
    """A hash map with keys and values of fixed sizes."""

    def __init__(self, descriptor: int, *, key_bytes: int, value_bytes: int) -> None:
        self.descriptor = descriptor
        self._key_bytes = key_bytes
        self._value_bytes = value_bytes

    def get(self, key: bytes) -> bytes | None:
        value = ctypes.create_string_buffer(self._value_bytes)
        try:
            self._element(_LOOKUP, key, value)
        except FileNotFoundError:
            return None
        return value.raw

    def put(self, key: bytes, value: bytes) -> None:
        self._element(_UPDATE, key, ctypes.create_string_buffer(value, self._value_bytes))

    def drop(self, key: bytes) -> None:
        """Remove a key; no-op if absent."""
        try:
            self._element(_DELETE, key, None)
        except FileNotFoundError:
            return

    def every_key(self) -> frozenset[bytes]:
        keys: set[bytes] = set()
        following = ctypes.create_string_buffer(self._key_bytes)
        key: bytes | None = None
        while True:
            try:
                self._element(_NEXT_KEY, key, following)
            except FileNotFoundError:
                return frozenset(keys)
            key = following.raw
            if key in keys:  # a key was removed meanwhile, so the iteration has restarted
                return frozenset(keys)
            keys.add(key)

    def _element(self, command: int, key: bytes | None, value: ctypes.Array[ctypes.c_char] | None) -> None:
        keys = ctypes.create_string_buffer(key, self._key_bytes) if key is not None else None
        addresses = [ctypes.addressof(buffer) if buffer is not None else 0 for buffer in (keys, value)]
        _bpf(command, struct.pack("<IxxxxQQQ", self.descriptor, *addresses, 0))  # 0: BPF_ANY


def load(name: str, instructions: bytes) -> int:
    """Load a program for the devices of a cgroup, which the kernel verifies. Return its descriptor."""
    code, terms = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(_LOG_BYTES)

    def attributes(level: int) -> bytes:
        said = (level, _LOG_BYTES, ctypes.addressof(log)) if level else (0, 0, 0)
        count = len(instructions) // _INSTRUCTION_BYTES
        places = (ctypes.addressof(code), ctypes.addressof(terms))
        kind, on = _CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE
        return struct.pack("<IIQQIIQII16sII", kind, count, *places, *said, 0, 0, name.encode(), 0, on)

    try:
        return _bpf(_LOAD, attributes(0))
    except PermissionError:
        raise
    except OSError as error:
        try:
            return _bpf(_LOAD, attributes(1))
        except OSError:
            why = log.value.decode(errors="replace").strip().splitlines()[-3:]
            raise OSError(error.errno, f"{error.strerror}: {' / '.join(why)}") from error


def attach(cgroup: int, program: int, *, instead_of: int | None = None) -> None:
    """Attach the program to a cgroup, in addition to others there or in place of one."""
    flags = _ALLOW_MULTI | (_REPLACE if instead_of is not None else 0)
    _bpf(_ATTACH, struct.pack("<5I", cgroup, program, _CGROUP_DEVICE, flags, instead_of or 0))


def attached(cgroup: int) -> frozenset[int]:
    """Return the ids of the programs attached to this very cgroup."""
    ids = (ctypes.c_uint32 * MAX_PROGRAMS)()
    fields = struct.pack("<4IQI", cgroup, _CGROUP_DEVICE, 0, 0, ctypes.addressof(ids), MAX_PROGRAMS)
    buffer = ctypes.create_string_buffer(fields, _ATTRIBUTES_BYTES)
    _bpf(_QUERY, buffer)
    (count,) = struct.unpack_from("<I", buffer.raw, 24)
    return frozenset(ids[:count])


def identity(program: int) -> tuple[int, bytes]:
    """Return the id of a program, and the tag that all programs with its instructions have."""
    info = ctypes.create_string_buffer(_INFO_START.size)
    _bpf(_INFO, struct.pack("<IIQ", program, len(info), ctypes.addressof(info)))
    _, number, tag = _INFO_START.unpack(info.raw)
    return int(number), bytes(tag)


def is_bpf_fs(directory: Path) -> bool:
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    done: int = _libc.statfs(os.fsencode(directory), status)
    return done == 0 and bool(struct.unpack_from("<q", status)[0] == _BPF_FS_MAGIC)


def pin(descriptor: int, path: Path) -> None:
    name = ctypes.create_string_buffer(os.fsencode(path))
    _bpf(_PIN, struct.pack("<QII", ctypes.addressof(name), descriptor, 0))


def pinned(path: Path) -> int | None:
    """Return a descriptor of the object pinned at the path, or None."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    try:
        return _bpf(_GET, struct.pack("<QII", ctypes.addressof(name), 0, 0))
    except FileNotFoundError:
        return None


RENEW_SECONDS: Final = 30.0
# How long only registered processes get a GPU while no arbiter runs. After that, every process does. An upgrade takes
# less; a node where the option or gpushare was removed does not stay locked.
AWAY_SECONDS: Final = 600.0
MAX_REGISTERED: Final = 1 << 16

Who = tuple[int, int]  # a process: pid and start ticks


class RegisteredMap:
    """The map behind a descriptor. Errors of the kernel raise OSError."""

    def __init__(self, descriptor: int, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._map = Map(descriptor, key_bytes=program.KEY.size, value_bytes=program.VALUE.size)
        self._clock_ns = clock_ns

    def renew(self) -> None:
        """Let the arbiter count as running for another AWAY_SECONDS."""
        until = self._clock_ns() + round(AWAY_SECONDS * 10**9)
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


def make_registered_map() -> int:
    """Create an empty map, and return its descriptor."""
    sizes = (program.KEY.size, program.VALUE.size, MAX_REGISTERED)
    return _bpf(_MAP_CREATE, struct.pack("<7I16s", _HASH, *sizes, _NO_PREALLOC, 0, 0, b"gpushare"))
