"""Auditing: parses the agents' audits, and checks by them and the ledger whether every limit is in force. Pure.

An agent's answer is proof. If an agent does not answer, only the condition that it wrote on the GPUNode is left. An
agent writes only changes, so the condition of a dead agent looks like that of a live one: the condition counts only if
the node's kubelet reports that the agent runs.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gpushare import contract
from gpushare.gpunode import GpuNode

# The states of a process without a limit, and of one whose memory alone is limited, by the driver; there are others.
UNLIMITED, FOREIGN, MEMORY_LIMITED = "unlimited", "foreign", "memory-limited"


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
    """A share on one GPU."""

    namespace: str
    pod: str
    containers: tuple[str, ...]
    gpu: str  # UUID
    granted: Amounts  # in the ledger, as the agent read it
    enforced: Amounts | None  # by the arbiter; None while it has no process
    charged_bytes: int
    overhead_bytes: int
    processes: int
    with_library: int
    in_force: bool
    reason: str
    memory_enforcement: str = ""  # driver, library or none; empty from agents before 0.4
    driver_bytes: int | None = None  # the driver's limit


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedAudit:
    """The audit of one node."""

    node: str
    checked_at: float
    problem: str  # why it is incomplete, or empty
    blind: bool  # whether a process without a limit could be hidden by that
    processes: tuple[ReportedProcess, ...]
    shares: tuple[ReportedShare, ...]


def parse_audit(text: str) -> ReportedAudit:
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
    charged, overhead, processes, with_library = (
        _whole(share.get(key) or 0) for key in ("chargedBytes", "overheadBytes", "processes", "withLibrary")
    )
    return ReportedShare(
        str(share["namespace"]),
        str(share["pod"]),
        tuple(map(str, share["containers"])),
        str(share["gpu"]),
        _amounts(share, "requestPercent", "limitPercent", "limitBytes"),
        None
        if share["enforcedBytes"] is None
        else _amounts(share, "enforcedRequestPercent", "enforcedLimitPercent", "enforcedBytes"),
        charged,
        overhead,
        processes,
        with_library,
        share["inForce"] is True,
        str(share.get("reason") or ""),
        str(share.get("memoryEnforcement") or ""),
        None if share.get("driverBytes") is None else _whole(share["driverBytes"]),
    )


def _amounts(share: Mapping[str, Any], request: str, limit: str, memory: str) -> Amounts:
    return Amounts(_whole(share[request]), _whole(share[limit]), _whole(share[memory]))


def _whole(figure: Any) -> int:
    """Return an integer of at most 64 bits. Raises OverflowError for a larger one."""
    number = int(figure)
    if abs(number) >= 2**63:
        raise OverflowError("a figure that needs more than 64 bits")
    return number


class AuditState(enum.StrEnum):
    """The state of a share's limits on one GPU, or of all limits on a node."""

    IN_FORCE = "InForce"
    IDLE = "Idle"  # the agent sees no process of it
    BROKEN = "NotInForce"
    CONDITION = "ByCondition"  # in force, by the GPUNode's condition alone
    UNKNOWN = "Unknown"


_WORST_FIRST = (AuditState.BROKEN, AuditState.UNKNOWN, AuditState.CONDITION, AuditState.IN_FORCE, AuditState.IDLE)


@dataclasses.dataclass(frozen=True, slots=True)
class ShareVerdict:
    """A share on one GPU: the amounts in the ledger, and whether the node enforces them. isolation: "" if unknown."""

    node: str
    gpu: str  # UUID
    namespace: str
    pod: str
    containers: tuple[str, ...]
    granted: Amounts
    state: AuditState
    reason: str = ""
    seen: ReportedShare | None = None  # as the agent reports it
    evaded: bool = False  # not in force because of a stray process
    isolation: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Stray:
    """A process without a limit on a GPU that has shares."""

    node: str
    process: ReportedProcess


@dataclasses.dataclass(frozen=True, slots=True)
class NodeVerdict:
    """A node. `checked_at`: when its agent audited, in seconds since 1970; None if it did not answer."""

    name: str
    state: AuditState
    reason: str = ""
    checked_at: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The result: nodes, shares, and processes outside of shares."""

    nodes: tuple[NodeVerdict, ...]
    shares: tuple[ShareVerdict, ...]
    strays: tuple[Stray, ...]

    @property
    def broken(self) -> bool:
        return bool(self.strays) or AuditState.BROKEN in self._states

    @property
    def uncertain(self) -> bool:
        return AuditState.UNKNOWN in self._states

    @property
    def _states(self) -> set[AuditState]:
        return {*(verdict.state for verdict in self.nodes), *(verdict.state for verdict in self.shares)}

    def containers(self, state: AuditState) -> int:
        """Return how many containers are in this state; the worst of a container's GPUs counts."""
        states: dict[tuple[str, str, str], AuditState] = {}
        for share in self.shares:
            for container in share.containers or ("",):
                key = (share.namespace, share.pod, container)
                states[key] = min(states.get(key, share.state), share.state, key=_WORST_FIRST.index)
        return sum(worst is state for worst in states.values())


def check(
    nodes: Sequence[GpuNode], audits: Mapping[str, ReportedAudit], *, ready: Collection[str] = ()
) -> AuditVerdict:
    judged, shares, strays = [], [], []
    for node in nodes:
        audit = audits.get(node.name)
        if audit is None:
            state, reason = _by_condition(node, runs=node.name in ready)
            judged.append(NodeVerdict(node.name, state, reason))
            certain = state is AuditState.CONDITION
            shares += [
                dataclasses.replace(share, state=state if certain else AuditState.UNKNOWN) for share in _ledger(node)
            ]
            continue
        shares += _answered(node, audit)
        loose = {UNLIMITED, FOREIGN, MEMORY_LIMITED}
        strays += [Stray(node.name, process) for process in audit.processes if process.state in loose]
        # The agent says whether a gap in its audit matters to the verdict.
        state = AuditState.UNKNOWN if audit.blind else AuditState.IN_FORCE
        judged.append(NodeVerdict(node.name, state, audit.problem, audit.checked_at))
    return AuditVerdict(tuple(judged), tuple(shares), tuple(strays))


def _answered(node: GpuNode, audit: ReportedAudit) -> Iterator[ShareVerdict]:
    seen = {(share.namespace, share.pod, share.containers, share.gpu): share for share in audit.shares}
    loose = {
        (process.gpu, process.namespace, process.pod, process.container)
        for process in audit.processes
        if process.state in {UNLIMITED, MEMORY_LIMITED}
    }
    for held in _ledger(node):
        share = seen.pop((held.namespace, held.pod, held.containers, held.gpu), None)
        yield held if share is None else _looked_at(held, share, loose)
    for share in (reported for reported in seen.values() if reported.processes):
        place = (node.name, share.gpu, share.namespace, share.pod, share.containers)
        yield _looked_at(ShareVerdict(*place, share.granted, AuditState.UNKNOWN), share, loose)


def _looked_at(held: ShareVerdict, share: ReportedShare, loose: Collection[tuple[str, str, str, str]]) -> ShareVerdict:
    evaded = any((held.gpu, held.namespace, held.pod, name) in loose for name in held.containers)
    state = AuditState.IN_FORCE if share.processes else AuditState.IDLE
    if evaded or not share.in_force:
        state = AuditState.BROKEN
    reason = share.reason or ("one of its processes has no limits" if evaded else "")
    return dataclasses.replace(held, state=state, reason=reason, seen=share, evaded=evaded)


def _ledger(node: GpuNode) -> Iterator[ShareVerdict]:
    for entry in node.allocations:
        if entry.is_backfill_reservation or entry.reserved_until is not None:
            continue  # its pod has not been seen yet
        for share in entry.shares:
            amounts = Amounts(share.request_percent, share.limit_percent, share.memory_bytes)
            for uuid in share.gpu_uuids:
                place = (node.name, uuid, entry.pod.namespace, entry.pod.name, share.containers)
                yield ShareVerdict(*place, amounts, AuditState.IDLE, isolation=entry.labels.isolation.value)


def _by_condition(node: GpuNode, *, runs: bool) -> tuple[AuditState, str]:
    limits = node.condition(contract.CONDITION_LIMITS_IN_FORCE)
    if limits is None:
        return AuditState.UNKNOWN, f"no condition {contract.CONDITION_LIMITS_IN_FORCE} on the GPUNode"
    if limits.status == "True" and not runs:
        at = limits.last_transition.partition(".")[0].removesuffix("Z")  # without microseconds
        since = f" since {at}Z" if at else ""
        return AuditState.UNKNOWN, (
            f"its GPUNode says {contract.CONDITION_LIMITS_IN_FORCE}{since}, which is no proof: its agent has not "
            "answered, and whether it runs is unknown"
        )
    if limits.status == "True":
        return AuditState.CONDITION, ""
    return AuditState.BROKEN if limits.status == "False" else AuditState.UNKNOWN, limits.message or limits.reason
