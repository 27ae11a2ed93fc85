"""The audit for others: the JSON of GET /audit, the GPUNode's condition, the sentences of Events. Pure."""

from __future__ import annotations

from typing import Any, Final

from deviceplugin.audit.node_audit import AuditedProcess, AuditedShare, LimitState, NodeAudit
from gpushare import contract
from gpushare.gpunode import Condition

ALL_LIMITED: Final = "every process on a shared GPU is held to its limits"
_MOST_NAMED: Final = 10


def to_json(audit: NodeAudit, *, node_name: str, checked_at: float) -> dict[str, Any]:
    """The document, with the node's name and when it was looked at, in Unix seconds."""
    return {
        "node": node_name,
        "checkedAt": round(checked_at, 3),
        "problem": "; ".join(one.sentence for one in audit.problems),
        "blind": any(one.blind for one in audit.problems),
        "gpus": [
            {
                "uuid": card.uuid,
                "index": card.index,
                "mode": str(card.mode),
                "processes": [_process(one) for one in audit.processes if one.process.gpu == card.uuid],
            }
            for card in audit.gpus
        ],
        "shares": [_share(one) for one in audit.shares],
    }


def condition(audit: NodeAudit) -> Condition:
    """LimitsInForce, with every reason why not."""
    kind = contract.CONDITION_LIMITS_IN_FORCE
    unlimited, foreign = audit.of(LimitState.UNLIMITED), audit.of(LimitState.FOREIGN)
    # A share whose processes run unlimited is told of by each of them.
    around = {(one.namespace, one.pod, one.process.gpu) for one in unlimited}
    differing = [one for one in audit.shares if not one.in_force and (one.namespace, one.pod, one.gpu) not in around]
    sentences = [sentence(audit, one) for one in (*unlimited, *foreign)]
    sentences += [_of_share(audit, one, one.reason) for one in differing]
    if sentences:
        reason = "ShareBeyondLimit" if any(one.beyond is not None for one in differing) else "LimitsDiffer"
        reason = "ProcessUnlimited" if unlimited else "ForeignProcess" if foreign else reason
        more = len(sentences) - _MOST_NAMED
        message = "; ".join((*sentences[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])))
        return Condition(kind, "False", reason, message)
    blind = [one.sentence for one in audit.problems if one.blind]
    if blind:
        return Condition(kind, "Unknown", "AuditIncomplete", "; ".join(blind))
    return Condition(kind, "True", "Audited", "; ".join((ALL_LIMITED, *(one.sentence for one in audit.problems))))


def sentence(audit: NodeAudit, judged: AuditedProcess) -> str:
    """What is to be told of a process that is not limited."""
    of = f" of the pod {judged.namespace}/{judged.pod}" if judged.pod else ""
    process = judged.process
    where = audit.label(process.gpu)
    return f"{process.name} (process {process.pid}){of} runs without limits on {where}: {judged.reason}"


def beyond(audit: NodeAudit, share: AuditedShare) -> str:
    """What is to be told of a share that uses more of a GPU's time than it is let have."""
    return _of_share(audit, share, share.beyond.sentence if share.beyond is not None else "")


def _of_share(audit: NodeAudit, share: AuditedShare, reason: str) -> str:
    return f"the pod {share.namespace}/{share.pod} on {audit.label(share.gpu)}: {reason}"


def _process(one: AuditedProcess) -> dict[str, Any]:
    return {
        "pid": one.process.pid,
        "name": one.process.name,
        "namespace": one.namespace,
        "pod": one.pod,
        "container": one.container,
        "usedBytes": one.process.used_bytes,
        "chargedBytes": one.charged_bytes,
        "state": str(one.state),
        "reason": one.reason,
    }


def _share(one: AuditedShare) -> dict[str, Any]:
    enforced = one.enforced
    return {
        "namespace": one.namespace,
        "pod": one.pod,
        "containers": list(one.containers),
        "gpu": one.gpu,
        "requestPercent": one.request_percent,
        "limitPercent": one.limit_percent,
        "limitBytes": one.limit_bytes,
        "enforcedRequestPercent": enforced.request_percent if enforced is not None else None,
        "enforcedLimitPercent": enforced.limit_percent if enforced is not None else None,
        "enforcedBytes": enforced.memory_bytes if enforced is not None else None,
        "chargedBytes": one.charged_bytes,
        "overheadBytes": one.overhead_bytes,
        "usedPercent": round(100 * one.beyond.used) if one.beyond is not None else None,
        "letPercent": round(100 * one.beyond.let) if one.beyond is not None else None,
        "processes": one.processes,
        "withLibrary": one.with_library,
        "inForce": one.in_force,
        "reason": one.reason,
    }
