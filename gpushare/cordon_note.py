"""CordonNote: who cordoned a GPU, when and why, as an annotation of its GPUNode."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from gpushare import contract


@dataclasses.dataclass(frozen=True, slots=True)
class CordonNote:
    """A note on a manual cordon; each field may be empty. at: RFC 3339."""

    by: str = ""
    at: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """Format as `by alice at 2026-03-01T12:00:00Z: ECC errors`."""
        known = [f"by {self.by}"] * bool(self.by) + [f"at {self.at}"] * bool(self.at)
        return ": ".join(filter(None, (" ".join(known), self.reason)))


def read(annotations: Mapping[str, Any]) -> dict[str, CordonNote]:
    """Return the notes by UUID. An annotation that is not a note counts as a reason: people write them by hand."""
    return {
        key.removeprefix(contract.CORDON_ANNOTATION_PREFIX): _read(str(value))
        for key, value in annotations.items()
        if key.startswith(contract.CORDON_ANNOTATION_PREFIX)
    }


def as_annotations(notes: Mapping[str, CordonNote | None]) -> dict[str, str | None]:
    """Return the annotations to merge into a GPUNode, by UUID of the GPU; None removes one."""
    return {
        contract.CORDON_ANNOTATION_PREFIX + uuid: json.dumps(dataclasses.asdict(note)) if note else None
        for uuid, note in notes.items()
    }


def _read(text: str) -> CordonNote:
    try:
        written = json.loads(text)
        return CordonNote(*(str(written[field.name]) for field in dataclasses.fields(CordonNote)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return CordonNote(reason=text)
