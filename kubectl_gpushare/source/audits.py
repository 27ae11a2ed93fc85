"""Audits: what the agents say of who uses their GPUs, and whether the limits hold. Values, and the reader of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

UNLIMITED, FOREIGN = "unlimited", "foreign"  # states of a process that no limit holds; there are others


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedProcess:
    """A process on a GPU. `namespace`, `pod` and `container` are empty of one that belongs to no pod."""

    gpu: str  # UUID
    pid: int
    name: str
    namespace: str
    pod: str
    container: str
    used_bytes: int | None  # as the driver says, None if it does not
    charged_bytes: int  # as the ledger says
    state: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Amounts:
    """Of a share, on one GPU."""

    request_percent: int
    limit_percent: int
    memory_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedShare:
    """A share on one GPU. `granted`: what the agent read in the ledger; `enforced`: what the arbiter holds it to, None
    while nothing of it runs."""

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
    """Of one node.

    problem: why it is not complete, empty if it is; blind: whether by that a process may run unlimited unseen.
    """

    node: str
    checked_at: float
    problem: str
    blind: bool
    processes: tuple[ReportedProcess, ...]
    shares: tuple[ReportedShare, ...]


_MOST: Final = 2**63 - 1


def read(text: str) -> ReportedAudit:
    """The audit in an agent's answer. Raises ValueError if it is none."""
    try:
        document = json.loads(text)
        return ReportedAudit(
            str(document["node"]),
            float(document["checkedAt"]),
            str(document.get("problem") or ""),
            bool(document["blind"]),
            tuple(_process(card, process) for card in document["gpus"] for process in card["processes"]),
            tuple(map(_share, document["shares"])),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{error!r} in it") from error


def _process(card: Mapping[str, Any], process: Mapping[str, Any]) -> ReportedProcess:
    return ReportedProcess(
        str(card["uuid"]),
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
    """A figure that an agent can mean. Raises OverflowError for another."""
    number = int(figure)
    if abs(number) > _MOST:
        raise OverflowError("a figure that needs more than 64 bits")
    return number
