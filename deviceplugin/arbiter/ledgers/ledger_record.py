"""Who has which slot of which ledger, kept where the next agent finds it.

The ledgers themselves live in memory, and go on living in the processes that have them mapped; the next agent takes
them from there (`process.mapping`). What it cannot take from there is whose slot is whose, and that is here: one small
file a share, written before a process is told its slot. It is believed only under the same boot of the kernel.

An agent of the release before reads it too, and takes no field of a tenant or a grant that it does not know: what is
new goes beside them. This one, and those after it, pass over what they do not know.

The other way, files on a tmpfs, would need no such search, but files cannot be sealed: a container could cut off, or
grow without end, what it is given, and root in it could write to its own limits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from deviceplugin.arbiter.tenant import Tenant, invalid
from deviceplugin.disk import records, whole_file
from gpushare import contract


class RecordError(ValueError):
    """A file that is not a record; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One share's ledger. `slots`: the pid and start of the process that has it, by slot."""

    boot_id: str
    tenant: Tenant
    ledger: tuple[int, int]
    slot_count: int
    slots: Mapping[int, tuple[int, int]]
    layout: int = contract.PAGES_LAYOUT  # of the ledger; release 0.1.0 does not say it


def write(directory: Path, record: LedgerRecord) -> None:
    """Write it, whole or not at all."""
    document = dataclasses.asdict(record)
    del document["tenant"]["group"]  # 0.1.0 reads no field that it does not know; whoever joins brings it
    text = json.dumps(document, separators=(",", ":"))
    whole_file.write(path_of(directory, record.tenant), text)


def read(path: Path) -> LedgerRecord:
    """Read it back. Raises RecordError."""
    try:
        document = records.load(path)
        layout = document.get("layout", 0)
        records.check(layout == contract.PAGES_LAYOUT, f"its pages have layout {layout}, unknown to this agent")
        slots = {int(slot): records.read(tuple[int, int], who) for slot, who in document["slots"].items()}
        slot_count = records.read(int, document["slot_count"])
        wrong = [slot for slot in (*slots, slot_count - 1) if not -1 <= slot < contract.LEDGER_SLOTS]
        records.check(not wrong and -1 not in slots, f"a ledger has no such slots: {wrong or slots}")
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
    """The file of this share's record."""
    return directory / f"{tenant.key}.json"


def all_in(directory: Path) -> list[Path]:
    """The files of all records in the directory."""
    return sorted(directory.glob("*.json"))
