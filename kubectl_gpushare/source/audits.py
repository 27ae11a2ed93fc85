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
    """A share on one GPU. `given`: what the agent read in the ledger; `enforced`: what the arbiter holds it to, None
    while nothing of it runs."""

    namespace: str
    pod: str
    containers: tuple[str, ...]
    gpu: str  # UUID
    given: Amounts
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
            tuple(_process(card, one) for card in document["gpus"] for one in card["processes"]),
            tuple(map(_share, document["shares"])),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{error!r} in it") from error


def _process(card: Mapping[str, Any], one: Mapping[str, Any]) -> ReportedProcess:
    return ReportedProcess(
        str(card["uuid"]),
        _whole(one["pid"]),
        str(one["name"]),
        str(one.get("namespace") or ""),
        str(one.get("pod") or ""),
        str(one.get("container") or ""),
        None if one["usedBytes"] is None else _whole(one["usedBytes"]),
        _whole(one.get("chargedBytes") or 0),
        str(one["state"]),
        str(one.get("reason") or ""),
    )


def _share(one: Mapping[str, Any]) -> ReportedShare:
    return ReportedShare(
        str(one["namespace"]),
        str(one["pod"]),
        tuple(map(str, one["containers"])),
        str(one["gpu"]),
        Amounts(_whole(one["requestPercent"]), _whole(one["limitPercent"]), _whole(one["limitBytes"])),
        None
        if one["enforcedBytes"] is None
        else Amounts(
            _whole(one["enforcedRequestPercent"]), _whole(one["enforcedLimitPercent"]), _whole(one["enforcedBytes"])
        ),
        _whole(one.get("chargedBytes") or 0),
        _whole(one.get("overheadBytes") or 0),
        _whole(one.get("processes") or 0),
        _whole(one.get("withLibrary") or 0),
        one["inForce"] is True,
        str(one.get("reason") or ""),
    )


def _whole(found: Any) -> int:
    """A figure that an agent can mean. Raises OverflowError for another."""
    number = int(found)
    if abs(number) > _MOST:
        raise OverflowError("a figure that needs more than 64 bits")
    return number
