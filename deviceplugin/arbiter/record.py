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
from typing import Any

from deviceplugin import records, whole_file
from deviceplugin.arbiter.tenant import Grant, Tenant
from gpushare import contract


class RecordError(ValueError):
    """A file that is no record; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One share's ledger. `slots`: the pid and start of the process that has it, by slot."""

    boot_id: str
    tenant: Tenant
    ledger: tuple[int, int]
    slot_count: int
    slots: Mapping[int, tuple[int, int]]
    layout: int = contract.PAGES_LAYOUT  # of the ledger; release 0.1.0 does not say it


def write(directory: Path, record: Record) -> None:
    """Write it, whole or not at all."""
    told = dataclasses.asdict(record)
    del told["tenant"]["group"]  # 0.1.0 reads no field that it does not know; whoever joins brings it
    text = json.dumps(told, separators=(",", ":"))
    whole_file.write(path_of(directory, record.tenant), text)


def read(path: Path) -> Record:
    """Read it back. Raises RecordError."""
    try:
        found = json.loads(path.read_text())
        layout = int(found.get("layout", 0))
        records.check(layout == contract.PAGES_LAYOUT, f"its pages have layout {layout}, unknown to this agent")
        told = found["tenant"]
        grants = tuple(Grant(**_known(Grant, grant)) for grant in told["grants"])
        containers = tuple(told["containers"])
        return Record(
            boot_id=found["boot_id"],
            tenant=Tenant(**{**_known(Tenant, told), "containers": containers, "grants": grants}),
            ledger=(int(found["ledger"][0]), int(found["ledger"][1])),
            slot_count=int(found["slot_count"]),
            slots={int(slot): (int(who[0]), int(who[1])) for slot, who in found["slots"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RecordError(f"{path} is no record of a ledger: {error}") from error


def _known(kind: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Without what only a newer agent knows."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in found.items() if name in names}


def path_of(directory: Path, tenant: Tenant) -> Path:
    """Its file."""
    return directory / f"{tenant.key}.json"


def all_in(directory: Path) -> list[Path]:
    """Every record's file."""
    return sorted(directory.glob("*.json"))
