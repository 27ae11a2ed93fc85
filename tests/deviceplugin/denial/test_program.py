"""The program and its field offsets, as far as they can be tested without a kernel."""

from __future__ import annotations

import struct

import pytest

from deviceplugin.denial import program
from deviceplugin.host import kernel_process

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
234 nvidia-caps
510 nvidia-uvm
226 drm

Block devices:
  7 loop
259 nvidia-of-some-disk
"""
INT, STRUCT, ANONYMOUS = 1, 4, 0


class Types:
    """A kernel's types in the form of BTF."""

    def __init__(self) -> None:
        self._names = b"\0"
        self._types = b""
        self._count = 0

    def name(self, text: str) -> int:
        at = len(self._names)
        self._names += text.encode() + b"\0"
        return at if text else ANONYMOUS

    def add(self, name: str, kind: int, more: bytes, count: int = 0, *, bitfields: bool = False) -> int:
        info = kind << 24 | count | bitfields << 31
        self._types += struct.pack("<III", self.name(name), info, 4) + more
        self._count += 1
        return self._count

    def structure(self, name: str, *members: tuple[str, int, int], bitfields: bool = False) -> int:
        more = b"".join(struct.pack("<III", self.name(member), kind, bits) for member, kind, bits in members)
        return self.add(name, STRUCT, more, len(members), bitfields=bitfields)

    def bytes(self) -> bytes:
        header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self._types), len(self._types), len(self._names))
        return header + self._types + self._names


def types() -> bytes:
    made = Types()
    number = made.add("int", INT, b"\0\0\0\0")
    inner = made.structure("", ("first", number, 0), ("tgid", number, 64))
    made.structure("task_struct", ("pid", number, 0), ("", inner, 128), ("flag", number, 3 << 24 | 320), bitfields=True)
    made.structure("pid", ("level", number, 32))
    return made.bytes()


def test_fields_are_found_even_inside_unnamed_members() -> None:
    offsets = program.offsets(types(), {"task_struct": ("pid", "tgid", "flag"), "pid": ("level",)})
    assert offsets == {
        ("task_struct", "pid"): 0,
        ("task_struct", "tgid"): 24,
        ("task_struct", "flag"): 40,
        ("pid", "level"): 4,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (types()[:40], "are truncated"),
        (b"", "are truncated"),
        (b"\0" * 64, "unknown format"),
        (types().replace(b"tgid", b"xxxx"), "have no task_struct.tgid"),
        (types().replace(b"task_struct", b"task_strict"), "have no task_struct.tgid"),
    ],
)
def test_a_kernel_without_the_types_is_an_error_that_names_them(text: bytes, said: str) -> None:
    with pytest.raises(program.FieldsError, match=said):
        program.offsets(text, {"task_struct": ("tgid",)})


def test_the_drivers_devices_are_found_by_name() -> None:
    assert program.majors(DEVICES) == {195, 234, 510}
    assert program.majors("") == {195}


def test_every_jump_is_within_the_program() -> None:
    offsets = {(structure, field): 8 for structure, names in program.FIELDS.items() for field in names}
    code = program.assemble({195, 234, 510}, offsets, 7)
    lines = [struct.unpack_from("<BBhi", code, at) for at in range(0, len(code), 8)]
    jumps = [(at, line[2]) for at, line in enumerate(lines) if line[0] & 7 == 5 and line[0] not in {0x85, 0x95}]
    assert jumps
    assert all(at < at + 1 + offset < len(lines) for at, offset in jumps)


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        ("pod4d6741be-c19c-433a-94ca-f4cdd396ef5f", "4d6741be-c19c-433a-94ca-f4cdd396ef5f"),
        ("kubepods-burstable-pod4d6741be_c19c_433a_94ca_f4cdd396ef5f.slice", "4d6741be-c19c-433a-94ca-f4cdd396ef5f"),
        ("kubelet-kubepods-pod4d6741be_c19c_433a_94ca_f4cdd396ef5f.slice", "4d6741be-c19c-433a-94ca-f4cdd396ef5f"),
        ("kubepods-burstable.slice", None),
        ("podman-4d6741be.scope", None),
    ],
)
def test_a_pod_is_identified_by_the_name_of_its_cgroup(name: str, uid: str | None) -> None:
    assert kernel_process.pod_of(name) == uid
