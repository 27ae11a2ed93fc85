"""Where this kernel has the fields of its structures, by the types that it tells of itself (BTF). Pure.

The format is that of Documentation/bpf/btf.rst: a header, types one after the other, and their names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

_MAGIC: Final = 0xEB9F
_HEADER: Final = struct.Struct("<HBBIIIII")  # magic, version, flags, its length; offset and length of types and names
_TYPE: Final = struct.Struct("<III")  # name, what it is, size or type
_MEMBER: Final = struct.Struct("<III")  # name, type, offset in bits
_STRUCT, _UNION = 4, 5
# What follows the twelve bytes of a type, in bytes, by its kind: once, and for each that it has. Elsewhere nothing.
_MORE: Final[Mapping[int, tuple[int, int]]] = {
    1: (4, 0),  # int
    3: (12, 0),  # array
    _STRUCT: (0, 12),
    _UNION: (0, 12),
    6: (0, 8),  # enum
    13: (0, 8),  # the parameters of a function
    14: (4, 0),  # variable
    15: (0, 12),  # section
    17: (4, 0),  # tag
    19: (0, 12),  # enum of 64 bits
}
_LAST_KIND: Final = 19


class FieldsError(Exception):
    """The kernel's types do not tell; the message says what is missing."""


def offsets(btf: bytes, wanted: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, str], int]:
    """The offset in bytes of each wanted field, by its structure and name. Raises FieldsError."""
    try:
        return _offsets(btf, wanted)
    except (struct.error, IndexError) as error:
        raise FieldsError("the kernel's types (BTF) end in the middle") from error


def _offsets(btf: bytes, wanted: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, str], int]:
    magic, _, _, header_bytes, types_at, types_bytes, names_at, names_bytes = _HEADER.unpack_from(btf)
    if magic != _MAGIC:
        raise FieldsError("the kernel's types (BTF) are not in the form that is known here")
    names = btf[header_bytes + names_at : header_bytes + names_at + names_bytes]
    places = list(_places(btf, header_bytes + types_at, header_bytes + types_at + types_bytes))
    field_offsets: dict[tuple[str, str], int] = {}
    for at in places:
        name, info, _ = _TYPE.unpack_from(btf, at)
        structure = next((tag for tag in wanted if _is(names, name, tag)), None) if _kind(info) == _STRUCT else None
        if structure is not None:
            members = list(_members(btf, places, at))
            for field in wanted[structure]:
                offset = next((offset for name, offset in members if _is(names, name, field)), None)
                if offset is not None:
                    field_offsets.setdefault((structure, field), offset)
    for structure, fields in wanted.items():
        for field in fields:
            if (structure, field) not in field_offsets:
                raise FieldsError(f"the kernel's types (BTF) have no {structure}.{field}")
    return field_offsets


def _is(names: bytes, at: int, name: str) -> bool:
    return names.startswith(name.encode() + b"\0", at)


def _kind(info: int) -> int:
    return info >> 24 & 0x1F


def _places(btf: bytes, at: int, end: int) -> Iterator[int]:
    """Where each type is, by its number less one."""
    while at < end:
        yield at
        info = _TYPE.unpack_from(btf, at)[1]
        kind = _kind(info)
        if kind > _LAST_KIND:
            raise FieldsError(f"the kernel's types (BTF) have one of kind {kind}, which is unknown here")
        once, per_member = _MORE.get(kind, (0, 0))
        at += _TYPE.size + once + per_member * (info & 0xFFFF)


def _members(btf: bytes, places: list[int], at: int, base_bits: int = 0) -> Iterator[tuple[int, int]]:
    """The name and offset in bytes of each member of a structure, and of those in it that have no name."""
    info = _TYPE.unpack_from(btf, at)[1]
    for position in range(info & 0xFFFF):
        name, kind, bits = _MEMBER.unpack_from(btf, at + _TYPE.size + position * _MEMBER.size)
        offset_bits = base_bits + (bits & 0xFFFFFF if info >> 31 else bits)  # with bitfields, their sizes are on top
        inner = places[kind - 1] if kind else at
        if name == 0 and _kind(_TYPE.unpack_from(btf, inner)[1]) in {_STRUCT, _UNION}:
            yield from _members(btf, places, inner, offset_bits)
        yield name, offset_bits // 8
