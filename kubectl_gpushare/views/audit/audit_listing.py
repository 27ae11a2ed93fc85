"""The verdict of `audit` as a listing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from kubectl_gpushare.output import documents
from kubectl_gpushare.output.table import Table
from kubectl_gpushare.planning.auditing import AuditVerdict
from kubectl_gpushare.views.audit import audit_items, audit_problems


@dataclasses.dataclass(frozen=True, slots=True)
class AuditListing:
    """A verdict; `gpu_names`: by UUID; `notes`: sentences about what is unknown."""

    verdict: AuditVerdict
    gpu_names: Mapping[str, str]
    notes: Sequence[str]

    def table(self) -> Table:
        """Return the table of limits that are not in force."""
        return audit_problems.table(self.verdict, self.gpu_names)

    def document(self) -> documents.Document:
        """Every share, as an `AuditList`."""
        return audit_items.of(self.verdict, self.gpu_names, self.notes)

    def names(self) -> Iterator[str]:
        """The pods, GPUs and nodes of what is not in force."""
        return audit_problems.names_of(self.verdict, self.gpu_names)
