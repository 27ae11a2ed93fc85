"""The whole for a program: an item for each share on each GPU, the processes that no limit holds, the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubectl_gpushare.output import documents
from kubectl_gpushare.planning.auditing import AuditState, AuditVerdict, NodeVerdict, ShareVerdict, Stray
from kubectl_gpushare.source.audits import Amounts
from kubectl_gpushare.views.audit import audit_summary


def of(verdict: AuditVerdict, names: Mapping[str, str], said: Sequence[str]) -> documents.Document:
    """The whole as an `AuditList`: an item for each share on each GPU."""
    return documents.listing(
        "AuditList",
        [_item(one, names) for one in verdict.shares],
        processes=[_process(one, names) for one in verdict.strays],
        nodes=[_node(one) for one in verdict.nodes],
        summary={
            "inForce": None if verdict.uncertain and not verdict.broken else not verdict.broken,
            "limited": verdict.containers(AuditState.IN_FORCE),
            "notLimited": verdict.containers(AuditState.BROKEN),
            "idle": verdict.containers(AuditState.IDLE),
            "sentence": audit_summary.sentence(verdict),
        },
        notes=list(said),
    )


def _item(one: ShareVerdict, names: Mapping[str, str]) -> dict[str, Any]:
    seen = one.seen
    return {
        "node": one.node,
        "gpu": {"name": names.get(one.gpu, ""), "uuid": one.gpu},
        "pod": {"namespace": one.namespace, "name": one.pod},
        "containers": list(one.containers),
        "limits": str(one.state),
        "reason": one.reason,
        "ledger": _amounts_document(one.given),
        "enforced": _amounts_document(seen.enforced if seen else None),
        "chargedBytes": seen.charged_bytes if seen else None,
        "overheadBytes": seen.overhead_bytes if seen else None,
        "processes": seen.processes if seen else None,
        "withLibrary": seen.with_library if seen else None,
    }


def _amounts_document(one: Amounts | None) -> dict[str, int | None]:
    return {
        "requestPercent": one.request_percent if one else None,
        "limitPercent": one.limit_percent if one else None,
        "memoryBytes": one.memory_bytes if one else None,
    }


def _process(one: Stray, names: Mapping[str, str]) -> dict[str, Any]:
    process = one.process
    return {
        "node": one.node,
        "gpu": {"name": names.get(process.gpu, ""), "uuid": process.gpu},
        "pid": process.pid,
        "name": process.name,
        "pod": {"namespace": process.namespace, "name": process.pod},
        "container": process.container,
        "usedBytes": process.used_bytes,
        "chargedBytes": process.charged_bytes,
        "state": process.state,
        "reason": process.reason,
    }


def _node(one: NodeVerdict) -> dict[str, Any]:
    return {"name": one.name, "limits": str(one.state), "reason": one.reason, "checkedAt": one.checked_at}
