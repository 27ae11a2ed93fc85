"""The document: an item for each share on each GPU, the processes without a limit, the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubectl_gpushare.output import documents
from kubectl_gpushare.planning.auditing import AuditState, AuditVerdict, NodeVerdict, ShareVerdict, Stray
from kubectl_gpushare.source.audits import Amounts
from kubectl_gpushare.views.audit import audit_summary


def of(verdict: AuditVerdict, names: Mapping[str, str], said: Sequence[str]) -> documents.Document:
    """The verdict as an `AuditList`."""
    return documents.listing(
        "AuditList",
        [_item(share, names) for share in verdict.shares],
        processes=[_process(stray, names) for stray in verdict.strays],
        nodes=[_node(node) for node in verdict.nodes],
        summary={
            "inForce": None if verdict.uncertain and not verdict.broken else not verdict.broken,
            "limited": verdict.containers(AuditState.IN_FORCE),
            "notLimited": verdict.containers(AuditState.BROKEN),
            "idle": verdict.containers(AuditState.IDLE),
            "sentence": audit_summary.sentence(verdict),
        },
        notes=list(said),
    )


def _item(share: ShareVerdict, names: Mapping[str, str]) -> dict[str, Any]:
    seen = share.seen
    return {
        "node": share.node,
        "gpu": {"name": names.get(share.gpu, ""), "uuid": share.gpu},
        "pod": {"namespace": share.namespace, "name": share.pod},
        "containers": list(share.containers),
        "limits": str(share.state),
        "reason": share.reason,
        "ledger": _amounts_document(share.granted),
        "enforced": _amounts_document(seen.enforced if seen else None),
        "chargedBytes": seen.charged_bytes if seen else None,
        "overheadBytes": seen.overhead_bytes if seen else None,
        "processes": seen.processes if seen else None,
        "withLibrary": seen.with_library if seen else None,
    }


def _amounts_document(amounts: Amounts | None) -> dict[str, int | None]:
    return {
        "requestPercent": amounts.request_percent if amounts else None,
        "limitPercent": amounts.limit_percent if amounts else None,
        "memoryBytes": amounts.memory_bytes if amounts else None,
    }


def _process(stray: Stray, names: Mapping[str, str]) -> dict[str, Any]:
    process = stray.process
    return {
        "node": stray.node,
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


def _node(node: NodeVerdict) -> dict[str, Any]:
    return {"name": node.name, "limits": str(node.state), "reason": node.reason, "checkedAt": node.checked_at}
