"""The program that the kernel runs whenever a process of a pod opens a device file, and the offsets that it needs.
Pure.

    not a character device of the driver, or neither read nor write        allow
    no arbiter has renewed its time for a while                            allow
    a process of the node itself, in no container                          allow
    registered, with the same start time, and still the same program       allow
    any other process                                                      deny

The arbiter writes registered processes into a map: by pid, the start time and the count of execs. The kernel sets that
count itself, when a registered process first opens a device file, which it does within the driver call that made it
register. So a program that replaces it (exec) is another one at once, before any process has heard of it. Programs of
this type can read the task since Linux 5.15 (bpf_get_current_task_btf).

The kernel's structures differ between builds. The offsets come from its type information (BTF), in the format of
Documentation/bpf/btf.rst: a header, the types one after another, and their names.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Final

FIELDS: Final = {
    "task_struct": ("tgid", "group_leader", "start_boottime", "self_exec_id", "thread_pid"),
    "pid": ("level",),
}
KEY: Final = struct.Struct("<I")  # a pid; 0 for the arbiter
# Start of the process in ticks since boot, and its count of execs plus 1, or 0 if not set yet. For the arbiter: the
# time until which it counts as running, in nanoseconds of CLOCK_MONOTONIC.
VALUE: Final = struct.Struct("<QQ")
ARBITER_KEY: Final = 0
NANOSECONDS_A_TICK: Final = 10_000_000  # as in /proc: USER_HZ is 100 on every machine with a GPU

_CHARACTER: Final = 2  # BPF_DEVCG_DEV_CHAR
_READ_OR_WRITE: Final = 6  # BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE
_LOOKUP, _NOW, _TASK = 1, 5, 158  # bpf_map_lookup_elem, bpf_ktime_get_ns, bpf_get_current_task_btf
_ALLOW, _DENY, _CHECK = "allow", "deny", "check"

DRIVERS_MAJOR: Final = 195  # of GPUs and /dev/nvidiactl, from Documentation/admin-guide/devices.txt

Offsets = Mapping[tuple[str, str], int]
_Line = tuple[int, int, int, int | str, int]  # operation, destination, source, offset or label, number


def majors(devices: str) -> frozenset[int]:
    """Return the major numbers of the driver's character devices, from the text of /proc/devices."""
    characters = devices.partition("Block devices:")[0]
    named = (line.split() for line in characters.splitlines())
    numbers = (int(words[0]) for words in named if len(words) == 2 and words[1].startswith("nvidia"))
    return frozenset({DRIVERS_MAJOR, *numbers})


def assemble(majors: Collection[int], offsets: Offsets, map_descriptor: int) -> bytes:
    """Return the program for devices with these major numbers, and this kernel's field offsets."""

    def task(field: str) -> int:
        return offsets["task_struct", field]

    lines: list[_Line | str] = [
        _load32(2, 1, 0),  # r2: the device type in the lower half, the access in the upper
        (0xBF, 3, 2, 0, 0),  # r3 = r2
        (0x57, 2, 0, 0, 0xFFFF),  # r2 &= 0xffff
        _unless_equal(2, _CHARACTER, _ALLOW),
        (0x77, 3, 0, 0, 16),  # r3 >>= 16
        (0x57, 3, 0, 0, _READ_OR_WRITE),
        _if_equal(3, 0, _ALLOW),
        _load32(2, 1, 4),  # r2: the major number
        *(_if_equal(2, major, _CHECK) for major in sorted(majors)),
        (0x05, 0, 0, _ALLOW, 0),  # jump
        _CHECK,
        _call(_NOW),
        (0xBF, 7, 0, 0, 0),  # r7: now
        (0x62, 10, 0, -4, ARBITER_KEY),  # *(u32 *)(r10 - 4)
        *_look_up(map_descriptor),
        _if_equal(0, 0, _ALLOW),
        _load64(1, 0, 0),  # r1: until when an arbiter counts as running
        (0x2D, 7, 1, _ALLOW, 0),  # if r7 > r1
        _call(_TASK),
        (0xBF, 7, 0, 0, 0),  # r7: the task
        _load64(1, 7, task("thread_pid")),
        _load32(1, 1, offsets["pid", "level"]),  # r1: the number of its pid namespaces below the node's
        _if_equal(1, 0, _ALLOW),
        _load32(1, 7, task("tgid")),
        (0x63, 10, 1, -4, 0),  # *(u32 *)(r10 - 4) = r1
        *_look_up(map_descriptor),
        _if_equal(0, 0, _DENY),
        _load64(1, 7, task("group_leader")),
        _load64(1, 1, task("start_boottime")),
        (0x37, 1, 0, 0, NANOSECONDS_A_TICK),  # r1 /= …
        _load64(2, 0, 0),
        (0x5D, 1, 2, _DENY, 0),  # if r1 != r2
        _load32(1, 7, task("self_exec_id")),
        (0x07, 1, 0, 0, 1),  # r1 += 1
        _load64(2, 0, 8),
        (0x1D, 1, 2, _ALLOW, 0),  # if r1 == r2
        _unless_equal(2, 0, _DENY),
        (0x7B, 0, 1, 8, 0),  # *(u64 *)(r0 + 8) = r1
        _ALLOW,
        (0xB7, 0, 0, 0, 1),
        (0x95, 0, 0, 0, 0),
        _DENY,
        (0xB7, 0, 0, 0, 0),
        (0x95, 0, 0, 0, 0),
    ]
    return _resolved(lines)


def _load32(to: int, base: int, offset: int) -> _Line:
    return 0x61, to, base, offset, 0


def _load64(to: int, base: int, offset: int) -> _Line:
    return 0x79, to, base, offset, 0


def _if_equal(register: int, number: int, place: str) -> _Line:
    return 0x15, register, 0, place, number


def _unless_equal(register: int, number: int, place: str) -> _Line:
    return 0x55, register, 0, place, number


def _call(helper: int) -> _Line:
    return 0x85, 0, 0, 0, helper


def _look_up(map_descriptor: int) -> tuple[_Line, ...]:
    """Load into r0 the address of the value of the key at r10 - 4, or 0."""
    return (
        (0x18, 1, 1, 0, map_descriptor),  # r1 = the map, in two instructions
        (0x00, 0, 0, 0, 0),
        (0xBF, 2, 10, 0, 0),
        (0x07, 2, 0, 0, -4),
        _call(_LOOKUP),
    )


def _resolved(lines: list[_Line | str]) -> bytes:
    places, instructions = {}, list[_Line]()
    for line in lines:
        if isinstance(line, str):
            places[line] = len(instructions)
        else:
            instructions.append(line)
    code = bytearray()
    for at, (operation, destination, source, where, number) in enumerate(instructions):
        offset = places[where] - at - 1 if isinstance(where, str) else where
        code += struct.pack("<BBhi", operation, source << 4 | destination, offset, number)
    return bytes(code)


_BTF_MAGIC: Final = 0xEB9F
# Magic, version, flags, length of the header; offset and length of the types, and of the names.
_BTF_HEADER: Final = struct.Struct("<HBBIIIII")
_BTF_TYPE: Final = struct.Struct("<III")  # name, kind, size or type
_BTF_MEMBER: Final = struct.Struct("<III")  # name, type, offset in bits
_STRUCT, _UNION = 4, 5
# Bytes that follow the twelve of a type, by its kind: once, and for each member. None for other kinds.
_BTF_EXTRA_BYTES: Final[Mapping[int, tuple[int, int]]] = {
    1: (4, 0),  # int
    3: (12, 0),  # array
    _STRUCT: (0, 12),
    _UNION: (0, 12),
    6: (0, 8),  # enum
    13: (0, 8),  # parameters of a function
    14: (4, 0),  # variable
    15: (0, 12),  # section
    17: (4, 0),  # tag
    19: (0, 12),  # 64-bit enum
}
_BTF_LAST_KIND: Final = 19


class FieldsError(Exception):
    """The kernel's types lack something; the message says what."""


def offsets(btf: bytes, wanted: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, str], int]:
    """Return the offset in bytes of each wanted field, by structure and name. Raises FieldsError."""
    field_offsets: dict[tuple[str, str], int] = {}
    try:
        magic, _, _, header_bytes, types_at, types_bytes, names_at, names_bytes = _BTF_HEADER.unpack_from(btf)
        if magic != _BTF_MAGIC:
            raise FieldsError("the kernel's types (BTF) have an unknown format")
        names = btf[header_bytes + names_at : header_bytes + names_at + names_bytes]
        places = list(_type_offsets(btf, header_bytes + types_at, header_bytes + types_at + types_bytes))
        for at in places:
            name, info, _ = _BTF_TYPE.unpack_from(btf, at)
            structure = (
                next((tag for tag in wanted if _has_name(names, name, tag)), None) if _kind(info) == _STRUCT else None
            )
            if structure is not None:
                members = list(_members(btf, places, at))
                for field in wanted[structure]:
                    offset = next((offset for name, offset in members if _has_name(names, name, field)), None)
                    if offset is not None:
                        field_offsets.setdefault((structure, field), offset)
    except (struct.error, IndexError) as error:
        raise FieldsError("the kernel's types (BTF) are truncated") from error
    for structure, fields in wanted.items():
        for field in fields:
            if (structure, field) not in field_offsets:
                raise FieldsError(f"the kernel's types (BTF) have no {structure}.{field}")
    return field_offsets


def _has_name(names: bytes, at: int, name: str) -> bool:
    return names.startswith(name.encode() + b"\0", at)


def _kind(info: int) -> int:
    return info >> 24 & 0x1F


def _type_offsets(btf: bytes, at: int, end: int) -> Iterator[int]:
    """Yield the position of each type, in the order of their numbers from 1."""
    while at < end:
        yield at
        info = _BTF_TYPE.unpack_from(btf, at)[1]
        kind = _kind(info)
        if kind > _BTF_LAST_KIND:
            raise FieldsError(f"the kernel's types (BTF) have the unknown kind {kind}")
        once, per_member = _BTF_EXTRA_BYTES.get(kind, (0, 0))
        at += _BTF_TYPE.size + once + per_member * (info & 0xFFFF)


def _members(btf: bytes, places: list[int], at: int, base_bits: int = 0) -> Iterator[tuple[int, int]]:
    """Yield name and offset in bytes of each member of a structure, and of the members of unnamed ones inside it."""
    info = _BTF_TYPE.unpack_from(btf, at)[1]
    for position in range(info & 0xFFFF):
        name, kind, bits = _BTF_MEMBER.unpack_from(btf, at + _BTF_TYPE.size + position * _BTF_MEMBER.size)
        # with bitfields, the upper byte is the field's size
        offset_bits = base_bits + (bits & 0xFFFFFF if info >> 31 else bits)
        inner = places[kind - 1] if kind else at
        if name == 0 and _kind(_BTF_TYPE.unpack_from(btf, inner)[1]) in {_STRUCT, _UNION}:
            yield from _members(btf, places, inner, offset_bits)
        yield name, offset_bits // 8
