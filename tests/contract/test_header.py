"""interposer/base/contract.h and gpushare/contract.py agree: names, values, sizes and offsets."""

from __future__ import annotations

import ast
import re
import struct
import subprocess
from pathlib import Path

import pytest

from gpushare import contract

HEADER = Path(__file__).resolve().parents[2] / "interposer" / "base" / "contract.h"
DEFINE = re.compile(r"^#define ([A-Z][A-Z0-9_]*) +(\"[^\"]*\"|0x[0-9A-Fa-f]+|[0-9]+)u?(?: .*)?$", re.MULTILINE)
GUARD = "GPUSHARE_CONTRACT_H"


def defines() -> dict[str, object]:
    return {name: ast.literal_eval(value) for name, value in DEFINE.findall(HEADER.read_text())}


def test_every_define_has_the_value_of_the_contract() -> None:
    constants = defines()
    assert {"WIRE_MAGIC", "MESSAGE_HELLO", "PAGE_SIZE", "LEDGER_SLOTS", "CONTAINER_LIBRARY"} <= constants.keys()
    assert constants == {name: getattr(contract, name) for name in constants}
    # The pattern above missed none.
    names = set(re.findall(r"^#define (\w+)", HEADER.read_text(), re.MULTILINE))
    assert names - {GUARD} == constants.keys()


def test_every_message_of_the_protocol_is_in_the_header() -> None:
    messages = {name for name in vars(contract) if name.startswith("MESSAGE_")}
    assert messages == {name for name in defines() if name.startswith("MESSAGE_")}


HEADER_BYTES = struct.calcsize(contract.WIRE_HEADER)
# A C expression and its expected value.
LAYOUT = {
    "sizeof(wire_header_t)": HEADER_BYTES,
    "offsetof(wire_header_t, magic)": 0,
    "offsetof(wire_header_t, version)": 4,
    "offsetof(wire_header_t, type)": 6,
    "offsetof(wire_header_t, size)": 8,
    "offsetof(wire_header_t, newest)": 12,
    "sizeof(wire_hello_t)": HEADER_BYTES + struct.calcsize(contract.WIRE_HELLO),
    "offsetof(wire_hello_t, library_version)": HEADER_BYTES,
    "sizeof(wire_welcome_t)": HEADER_BYTES + struct.calcsize(contract.WIRE_WELCOME),
    "offsetof(wire_welcome_t, gpu_count)": HEADER_BYTES,
    "offsetof(wire_welcome_t, slot)": HEADER_BYTES + 4,
    "sizeof(wire_isolation_t)": struct.calcsize(contract.WIRE_ISOLATION),
    "offsetof(wire_isolation_t, percent)": 4,
    "offsetof(wire_isolation_t, pipe)": 8,
    "sizeof(wire_refused_t)": HEADER_BYTES + struct.calcsize(contract.WIRE_REFUSED),
    "offsetof(wire_refused_t, sentence)": HEADER_BYTES,
    "sizeof(wire_reclaimed_t)": HEADER_BYTES + struct.calcsize(contract.WIRE_RECLAIMED),
    "offsetof(wire_reclaimed_t, bytes)": HEADER_BYTES,
    "sizeof(wire_lease_t)": HEADER_BYTES + struct.calcsize(contract.WIRE_LEASE),
    "offsetof(wire_lease_t, gpu)": HEADER_BYTES,
    "offsetof(wire_lease_t, flags)": HEADER_BYTES + 4,
    "offsetof(wire_lease_t, lease)": HEADER_BYTES + 8,
    "sizeof(limits_record_t)": contract.LIMITS_RECORD_SIZE,
    "offsetof(limits_record_t, uuid)": 0,
    "offsetof(limits_record_t, memory_bytes)": 16,
    "offsetof(limits_record_t, request_percent)": 24,
    "offsetof(limits_record_t, limit_percent)": 28,
    "offsetof(limits_record_t, overhead_bytes)": 32,
    "offsetof(limits_record_t, context_bytes)": 40,
    "offsetof(limits_page_t, gpu_count)": 0,
    "offsetof(limits_page_t, slot_count)": 4,
    "offsetof(limits_page_t, layout)": 8,
    "offsetof(limits_page_t, certain_slot)": 12,
    "offsetof(limits_page_t, gpu)": struct.calcsize(contract.LIMITS_HEADER),
    "sizeof(limits_page_t)": contract.PAGE_SIZE,
    "sizeof(ledger_page_t)": contract.PAGE_SIZE,
    "sizeof(((ledger_page_t *)0)->slot_bytes[0])": struct.calcsize(contract.LEDGER_SLOT),
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Return the values of the header, computed by the C compiler."""
    directory = tmp_path_factory.mktemp("layout")
    lines = "".join(f'    printf("%zu\\n", (size_t)({expression}));\n' for expression in LAYOUT)
    (directory / "layout.c").write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n{lines}    return 0;\n}}\n'
    )
    program = directory / "layout"
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Werror", "-o", program, directory / "layout.c"], check=True, timeout=60
    )
    printed = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    return dict(zip(LAYOUT, map(int, printed), strict=True))


@pytest.mark.parametrize("expression", LAYOUT)
def test_structs_have_the_layout_of_the_contract(measured: dict[str, int], expression: str) -> None:
    assert measured[expression] == LAYOUT[expression]


def test_records_of_the_contract_have_their_declared_sizes() -> None:
    assert struct.calcsize(contract.LIMITS_RECORD) == contract.LIMITS_RECORD_SIZE
    header, slot = struct.calcsize(contract.LIMITS_HEADER), struct.calcsize(contract.LEDGER_SLOT)
    assert header + contract.MAX_GPUS * contract.LIMITS_RECORD_SIZE <= contract.PAGE_SIZE
    assert contract.LEDGER_SLOTS * slot <= contract.PAGE_SIZE
    assert HEADER_BYTES + struct.calcsize(contract.WIRE_REFUSED) <= contract.WIRE_MAX
