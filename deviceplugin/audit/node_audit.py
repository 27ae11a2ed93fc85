"""The audit's observations of a moment, and its results as values, JSON, condition, Events and metrics. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from deviceplugin.arbiter.pages import LimitsRecord
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.audit.excess import Overuse, Place
from deviceplugin.host.kernel_process import Container
from deviceplugin.memory_limits.plan import HardLimitState
from gpushare import contract
from gpushare.gpunode import Condition, Gpu, MemoryEnforcement

ALL_LIMITED: Final = "limits apply to every process on a shared GPU"
_MAX_NAMED: Final = 10

ProcessIdentity = tuple[int, int]  # a process's pid and start time in kernel ticks


@dataclasses.dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process on a GPU, as the driver lists it.

    used_bytes: None if the driver does not report it. container: None if it is in no known container; `outside` says
    why. with_library: whether the library is mapped; None if unknown. orphaned: whether it maps a ledger from before
    the ledger records were lost. mps_server: whether it is an MPS server that the agent runs.
    """

    gpu: str
    pid: int
    start_ticks: int
    name: str
    used_bytes: int | None
    container: Container | None
    with_library: bool | None
    orphaned: bool = False
    outside: str = ""
    mps_server: bool = False

    @property
    def identity(self) -> ProcessIdentity:
        """The pid and start time, which identify the process even after its pid is reused."""
        return self.pid, self.start_ticks


@dataclasses.dataclass(frozen=True, slots=True)
class SeenMember:
    """A process registered with a share. charged_bytes: its charges on each GPU, in the order of the grants."""

    identity: ProcessIdentity
    charged_bytes: tuple[int, ...]
    with_library: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class SeenShare:
    """A share that has processes. enforced: its limits page, by GPU in the order of the grants."""

    tenant: Tenant
    enforced: tuple[LimitsRecord, ...]
    members: tuple[SeenMember, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Why the audit is incomplete. blind: whether it could miss an unlimited process."""

    sentence: str
    blind: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All observations of one scan.

    unreachable: processes with a ledger that this agent cannot open; they keep their limits. overuse: shares that used
    more of a GPU's time than allowed. driver_limits: the driver's memory limits. mps_clients: the PIDs of the
    clients of each GPU's MPS daemon, by UUID; a daemon that does not list them is missing.
    """

    gpus: tuple[Gpu, ...]
    processes: tuple[SeenProcess, ...]
    shares: tuple[SeenShare, ...]
    unreachable: frozenset[ProcessIdentity] = frozenset()
    problems: tuple[Problem, ...] = ()
    overuse: Mapping[Place, Overuse] = dataclasses.field(default_factory=dict)
    driver_limits: tuple[HardLimitState, ...] = ()
    mps_clients: Mapping[str, frozenset[int]] = dataclasses.field(default_factory=dict)


class LimitState(enum.StrEnum):
    """Whether and how a process on a GPU is limited."""

    LIMITED = "limited"  # registered with the arbiter
    UNLIMITED = "unlimited"  # in a share's container but not registered
    MEMORY_LIMITED = "memory-limited"  # its memory limit is kept, but nothing limits its compute
    FOREIGN = "foreign"  # on a fractional GPU without a share
    UNJUDGED = "unjudged"  # allowed there, or not decided yet


BYPASSING: Final = (LimitState.UNLIMITED, LimitState.MEMORY_LIMITED)


@dataclasses.dataclass(frozen=True, slots=True)
class AuditedProcess:
    """A process on a GPU and its state. Pod and container are empty if unknown.

    place: the allocation, and the position in it, of the share that the process bypassed.
    """

    process: SeenProcess
    state: LimitState
    namespace: str = ""
    pod: str = ""
    container: str = ""
    charged_bytes: int = 0
    reason: str = ""
    place: tuple[str, int] | None = None
    memory_enforcement: MemoryEnforcement = MemoryEnforcement.NONE

    @property
    def key(self) -> Hashable:
        return self.process.gpu, self.process.identity


@dataclasses.dataclass(frozen=True, slots=True)
class AuditedShare:
    """A share on one GPU: the GPUNode's limits, and the enforced ones (None while it has no process).

    overuse: its use of the GPU's time, if that exceeds the allowed time. driver_bytes: the limit that the driver
    reports; None if it keeps none. pod_uid: empty while unknown.
    """

    namespace: str
    pod: str
    containers: tuple[str, ...]
    gpu: str
    request_percent: int
    limit_percent: int
    limit_bytes: int
    enforced: LimitsRecord | None = None
    charged_bytes: int = 0
    processes: int = 0
    with_library: int = 0
    in_force: bool = True
    reason: str = ""
    overuse: Overuse | None = None
    memory_enforcement: MemoryEnforcement = MemoryEnforcement.LIBRARY
    driver_bytes: int | None = None
    pod_uid: str = ""

    @property
    def overhead_bytes(self) -> int:
        return self.enforced.overhead_bytes if self.enforced is not None else 0

    @property
    def beyond_bytes(self) -> int:
        """The bytes by which charges and overhead exceed the limit."""
        limit_bytes = self.enforced.memory_bytes if self.enforced is not None else self.limit_bytes
        return max(0, self.charged_bytes + self.overhead_bytes - limit_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAudit:
    """The result of an audit. suspects: findings to report if the next audit confirms them."""

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[AuditedProcess, ...] = ()
    shares: tuple[AuditedShare, ...] = ()
    problems: tuple[Problem, ...] = ()
    suspects: frozenset[Hashable] = frozenset()

    def in_state(self, *states: LimitState) -> tuple[AuditedProcess, ...]:
        return tuple(process for process in self.processes if process.state in states)

    def label(self, uuid: str) -> str:
        index = next((gpu.index for gpu in self.gpus if gpu.uuid == uuid), None)
        return f"GPU {uuid}" if index is None else f"GPU {index} ({uuid})"


def to_json(
    audit: NodeAudit, *, node_name: str, checked_at: float, parents: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the document. checked_at: Unix seconds. parents: the GPU of each MIG device of a share, both by UUID."""
    parents = parents or {}

    def gpu_of(uuid: str) -> str:
        return parents.get(uuid, uuid)

    return {
        "node": node_name,
        "checkedAt": round(checked_at, 3),
        "problem": "; ".join(problem.sentence for problem in audit.problems),
        "blind": any(problem.blind for problem in audit.problems),
        "gpus": [
            {
                "uuid": uuid,
                "index": gpu.index,
                "mode": str(gpu.mode),
                "memoryEnforcement": str(gpu.memory_enforcement),
                "processes": [_process_json(each) for each in audit.processes if gpu_of(each.process.gpu) == uuid],
            }
            for uuid, gpu in {gpu_of(gpu.uuid): gpu for gpu in audit.gpus}.items()
        ],
        "shares": [_share_json(share) | {"gpu": gpu_of(share.gpu)} for share in audit.shares],
    }


def condition(audit: NodeAudit) -> Condition:
    """Return the condition LimitsInForce, with all reasons if it is False."""
    kind = contract.CONDITION_LIMITS_IN_FORCE
    unlimited, foreign = audit.in_state(*BYPASSING), audit.in_state(LimitState.FOREIGN)
    # Skip shares with unlimited processes: each process has its own sentence.
    around = {(process.namespace, process.pod, process.process.gpu) for process in unlimited}
    differing = [
        share for share in audit.shares if not share.in_force and (share.namespace, share.pod, share.gpu) not in around
    ]
    sentences = [process_sentence(audit, process) for process in (*unlimited, *foreign)]
    sentences += [share_sentence(audit, share, share.reason) for share in differing]
    if sentences:
        reason = "ShareBeyondLimit" if any(share.overuse is not None for share in differing) else "LimitsDiffer"
        reason = "ProcessUnlimited" if unlimited else "ForeignProcess" if foreign else reason
        more = len(sentences) - _MAX_NAMED
        message = "; ".join((*sentences[:_MAX_NAMED], *([f"and {more} more"] if more > 0 else [])))
        return Condition(kind, "False", reason, message)
    blind = [problem.sentence for problem in audit.problems if problem.blind]
    if blind:
        return Condition(kind, "Unknown", "AuditIncomplete", "; ".join(blind))
    return Condition(kind, "True", "Audited", "; ".join((ALL_LIMITED, *(each.sentence for each in audit.problems))))


def process_sentence(audit: NodeAudit, audited: AuditedProcess) -> str:
    of = f" of the pod {audited.namespace}/{audited.pod}" if audited.pod else ""
    process = audited.process
    without = "a compute limit" if audited.state is LimitState.MEMORY_LIMITED else "limits"
    where = f"{without} on {audit.label(process.gpu)}"
    return f"{process.name} (process {process.pid}){of} runs without {where}: {audited.reason}"


def share_sentence(audit: NodeAudit, share: AuditedShare, reason: str) -> str:
    return f"the pod {share.namespace}/{share.pod} on {audit.label(share.gpu)}: {reason}"


def _process_json(process: AuditedProcess) -> dict[str, Any]:
    return {
        "pid": process.process.pid,
        "name": process.process.name,
        "namespace": process.namespace,
        "pod": process.pod,
        "container": process.container,
        "usedBytes": process.process.used_bytes,
        "chargedBytes": process.charged_bytes,
        "state": str(process.state),
        "memoryEnforcement": str(process.memory_enforcement),
        "reason": process.reason,
    }


def _share_json(share: AuditedShare) -> dict[str, Any]:
    enforced = share.enforced
    return {
        "namespace": share.namespace,
        "pod": share.pod,
        "containers": list(share.containers),
        "gpu": share.gpu,
        "requestPercent": share.request_percent,
        "limitPercent": share.limit_percent,
        "limitBytes": share.limit_bytes,
        "enforcedRequestPercent": enforced.request_percent if enforced is not None else None,
        "enforcedLimitPercent": enforced.limit_percent if enforced is not None else None,
        "enforcedBytes": enforced.memory_bytes if enforced is not None else None,
        "driverBytes": share.driver_bytes,
        "memoryEnforcement": str(share.memory_enforcement),
        "chargedBytes": share.charged_bytes,
        "overheadBytes": share.overhead_bytes,
        "usedPercent": round(100 * share.overuse.used) if share.overuse is not None else None,
        "letPercent": round(100 * share.overuse.allowed) if share.overuse is not None else None,
        "processes": share.processes,
        "withLibrary": share.with_library,
        "inForce": share.in_force,
        "reason": share.reason,
    }


def figures(audit: NodeAudit, *, node_name: str) -> Iterator[Metric]:
    of_gpu, of_share = ("gpu", "index", "model"), ("namespace", "pod", "containers", "gpu")

    def gauge(name: str, help_text: str, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, help_text, labels=["node", *labels])

    unlimited = gauge(
        "gpushare_gpu_unlimited_processes",
        "Processes of share containers that bypassed their limit of compute, memory or both, in two audits in a row.",
        of_gpu,
    )
    foreign = gauge(
        "gpushare_gpu_foreign_processes",
        "Processes on a fractional GPU that belong to no share, in two audits in a row.",
        of_gpu,
    )
    for gpu in audit.gpus:
        values = [node_name, gpu.uuid, str(gpu.index), gpu.model]
        for metric, states in ((unlimited, BYPASSING), (foreign, (LimitState.FOREIGN,))):
            metric.add_metric(values, sum(process.process.gpu == gpu.uuid for process in audit.in_state(*states)))
    beyond = gauge(
        "gpushare_share_beyond_limit_memory_bytes",
        "Bytes by which a share exceeds its memory limit; it gets no more memory while this is not 0.",
        of_share,
    )
    compute = gauge(
        "gpushare_share_beyond_limit_compute_ratio",
        "Fraction of a GPU's time that a share uses beyond what the arbiter allows, measured by the driver.",
        of_share,
    )
    for share in audit.shares:
        if share.processes:
            of = [node_name, share.namespace, share.pod, ",".join(share.containers), share.gpu]
            beyond.add_metric(of, share.beyond_bytes)
            compute.add_metric(of, share.overuse.used - share.overuse.allowed if share.overuse is not None else 0.0)
    complete = gauge("gpushare_audit_complete", "1 if the last audit was complete; /audit says why not.")
    complete.add_metric([node_name], float(not audit.problems))
    yield from (unlimited, foreign, beyond, compute, complete)
