"""Audits: the agents' reports of processes on their GPUs, and whether the limits hold; values and their parser."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

UNLIMITED, FOREIGN = "unlimited", "foreign"  # the states of a process without a limit; there are others


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedProcess:
    """A process on a GPU. `namespace`, `pod` and `container` are empty if it belongs to no pod."""

    gpu: str  # UUID
    pid: int
    name: str
    namespace: str
    pod: str
    container: str
    used_bytes: int | None  # reported by the driver; None if unknown
    charged_bytes: int  # from the ledger
    state: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Amounts:
    """The amounts of a share on one GPU."""

    request_percent: int
    limit_percent: int
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedShare:
    """A share on one GPU. `granted`: its amounts in the ledger, as the agent read it; `enforced`: the arbiter's, None
    while it has no process.
    """

    namespace: str
    pod: str
    containers: tuple[str, ...]
    gpu: str  # UUID
    granted: Amounts
    enforced: Amounts | None
    charged_bytes: int
    overhead_bytes: int
    processes: int
    with_library: int
    in_force: bool
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedAudit:
    """The audit of one node.

    problem: why it is incomplete, or empty; blind: whether a process without a limit could be hidden by that.
    """

    node: str
    checked_at: float
    problem: str
    blind: bool
    processes: tuple[ReportedProcess, ...]
    shares: tuple[ReportedShare, ...]


_MAX: Final = 2**63 - 1


def read(text: str) -> ReportedAudit:
    """Parse an agent's answer. Raises ValueError."""
    try:
        document = json.loads(text)
        return ReportedAudit(
            str(document["node"]),
            float(document["checkedAt"]),
            str(document.get("problem") or ""),
            bool(document["blind"]),
            tuple(_process(gpu, process) for gpu in document["gpus"] for process in gpu["processes"]),
            tuple(map(_share, document["shares"])),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{error!r} in it") from error


def _process(gpu: Mapping[str, Any], process: Mapping[str, Any]) -> ReportedProcess:
    return ReportedProcess(
        str(gpu["uuid"]),
        _whole(process["pid"]),
        str(process["name"]),
        str(process.get("namespace") or ""),
        str(process.get("pod") or ""),
        str(process.get("container") or ""),
        None if process["usedBytes"] is None else _whole(process["usedBytes"]),
        _whole(process.get("chargedBytes") or 0),
        str(process["state"]),
        str(process.get("reason") or ""),
    )


def _share(share: Mapping[str, Any]) -> ReportedShare:
    return ReportedShare(
        str(share["namespace"]),
        str(share["pod"]),
        tuple(map(str, share["containers"])),
        str(share["gpu"]),
        Amounts(_whole(share["requestPercent"]), _whole(share["limitPercent"]), _whole(share["limitBytes"])),
        None
        if share["enforcedBytes"] is None
        else Amounts(
            _whole(share["enforcedRequestPercent"]),
            _whole(share["enforcedLimitPercent"]),
            _whole(share["enforcedBytes"]),
        ),
        _whole(share.get("chargedBytes") or 0),
        _whole(share.get("overheadBytes") or 0),
        _whole(share.get("processes") or 0),
        _whole(share.get("withLibrary") or 0),
        share["inForce"] is True,
        str(share.get("reason") or ""),
    )


def _whole(figure: Any) -> int:
    """Return an integer of at most 64 bits. Raises OverflowError for a larger one."""
    number = int(figure)
    if abs(number) > _MAX:
        raise OverflowError("a figure that needs more than 64 bits")
    return number
