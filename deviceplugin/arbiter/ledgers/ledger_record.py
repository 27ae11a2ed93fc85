"""Records which process has which slot of which ledger, for the next agent.

The ledgers are shared memory, which survives in the processes that have it mapped; the next agent opens it there
(`kernel_process.mapping`). The owners of the slots are not in that memory, so each share has a small file for them. It
is written before a process learns its slot, and is valid only until the next boot.

The previous release reads the file too, and rejects unknown fields in a tenant or a grant, so new fields go next to
these. This release and later ones ignore unknown fields.

Ledgers as files on a tmpfs would not have to be searched for, but files cannot be sealed: a container could truncate
them or grow them without end, and its root user could write its own limits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from deviceplugin.arbiter.tenant import Tenant, invalid
from deviceplugin.host import records
from gpushare import contract


class RecordError(ValueError):
    """The file is not a valid record; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One share's ledger. `slots`: pid and start of the process in each slot. `ledger`: its device and inode."""

    boot_id: str
    tenant: Tenant
    ledger: tuple[int, int]
    slot_count: int
    slots: Mapping[int, tuple[int, int]]
    layout: int = contract.PAGES_LAYOUT  # of the ledger; missing in files of release 0.1.0


def write(directory: Path, record: LedgerRecord) -> None:
    """Write the record's file atomically."""
    document = dataclasses.asdict(record)
    del document["tenant"]["group"]  # 0.1.0 rejects unknown fields; joining processes set the group again
    text = json.dumps(document, separators=(",", ":"))
    records.write_file(path_of(directory, record.tenant), text)


def read(path: Path) -> LedgerRecord:
    """Read a record's file. Raises RecordError."""
    try:
        document = records.load(path)
        layout = document.get("layout", 0)
        records.check(layout == contract.PAGES_LAYOUT, f"its pages have layout {layout}, unknown to this agent")
        slots = {int(slot): records.read(tuple[int, int], who) for slot, who in document["slots"].items()}
        slot_count = records.read(int, document["slot_count"])
        wrong = [slot for slot in (*slots, slot_count - 1) if not -1 <= slot < contract.LEDGER_SLOTS]
        records.check(not wrong and -1 not in slots, f"invalid slots: {wrong or slots}")
        tenant = records.read(Tenant, document["tenant"], newer=True)
        refused = invalid(tenant)
        records.check(refused is None, str(refused))
        return LedgerRecord(
            boot_id=records.read(str, document["boot_id"]),
            tenant=tenant,
            ledger=records.read(tuple[int, int], document["ledger"]),
            slot_count=slot_count,
            slots=slots,
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RecordError(f"{path} is not a record of a ledger: {error}") from error


def path_of(directory: Path, tenant: Tenant) -> Path:
    """Return the path of the share's record."""
    return directory / f"{tenant.key}.json"


def all_in(directory: Path) -> list[Path]:
    """Return the paths of all records in the directory."""
    return sorted(directory.glob("*.json"))
