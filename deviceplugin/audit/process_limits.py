"""Checks which processes are limited, and whether each share's limits are in force. Pure.

A single observation is never reported. Between a process's registration and its first memory, between its death and the
driver's notice, and between a change of the GPUNode and of the limits page, everything is in order but looks wrong. Two
seconds later it does not.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.tenant import Missing, NotYet, Tenant
from deviceplugin.audit.excess import Overuse
from deviceplugin.audit.node_audit import (
    BYPASSING,
    AuditedProcess,
    AuditedShare,
    LimitState,
    NodeAudit,
    Problem,
    ProcessIdentity,
    Seen,
    SeenProcess,
    SeenShare,
)
from deviceplugin.hardware import nvml_limits
from deviceplugin.host.kernel_process import Container
from deviceplugin.memory_limits.plan import HardLimitState
from gpushare import pod, quantity
from gpushare.allocation import Isolation
from gpushare.gpunode import GpuNode, MemoryEnforcement, Mode
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

AGAIN: Final = ": the next audit decides"
MAY_DEPRIVE_SHARES: Final = ", and it may use memory and compute that belong to shares"
ELSEWHERE: Final = "its container has a share, but not of this GPU"
NOT_REGISTERED: Final = "its container has a share of this GPU, but it is not registered with the arbiter"
ORPHANED: Final = "it uses limits from a previous agent whose records were lost: restart its container"
NO_LIBRARY: Final = f"{NOT_REGISTERED}: the library is not loaded (a static program, or the preload file was removed)"
MEMORY_ONLY: Final = "the driver keeps its memory within the share's limit, but nothing limits its compute: "
CLUSTER_UNKNOWN: Final = Problem("the pods and the GPUNode are not known yet, so shares cannot be checked")
GONE: Final = "the GPUNode no longer has this share, but its processes still run"
NOT_A_CLIENT: Final = (
    "its share has the isolation mps, but it is not a client of its GPU's MPS daemon, so its compute is not limited"
)
_MAX_NAMED: Final = 5
_STRENGTH: Final = (MemoryEnforcement.NONE, MemoryEnforcement.LIBRARY, MemoryEnforcement.DRIVER)
_REPORTED: Final = frozenset({*BYPASSING, LimitState.FOREIGN})

_SharePlace = tuple[str, int, str]  # allocation id, position of the share in it, GPU UUID


def check(
    seen: Seen, *, pods: Sequence[PodJson], node: GpuNode | None, suspects: frozenset[Hashable] = frozenset()
) -> NodeAudit:
    """Return the audit. node: None while unknown. suspects: those of the previous audit."""
    processes = _Processes(seen, pods, node)
    audited_processes, waiting = [], set()
    for process in seen.processes:
        audited = processes.check(process)
        if audited.state in _REPORTED:
            waiting.add(audited.key)
            if audited.key not in suspects:
                audited = dataclasses.replace(audited, state=LimitState.UNJUDGED, reason=audited.reason + AGAIN)
        audited_processes.append(audited)
    problems = seen.problems
    if node is None:
        return NodeAudit(seen.gpus, tuple(audited_processes), (), (*problems, CLUSTER_UNKNOWN), frozenset(waiting))
    unseen = sum(member.with_library is None for share in seen.shares for member in share.members)
    if unseen:
        why = "the agent needs SYS_PTRACE, or one container's processes map too many files for one audit"
        problems = (*problems, Problem(f"{unseen} processes cannot be inspected: {why}"))
    shares, differing = _check_shares(seen, processes.driver_limits, node, pods, audited_processes, suspects)
    return NodeAudit(seen.gpus, tuple(audited_processes), shares, problems, frozenset(waiting) | differing)


def troubles(audit: NodeAudit) -> Mapping[Hashable, AuditedProcess]:
    return {process.key: process for process in audit.processes if process.state in _REPORTED}


def processes_to_kill(audit: NodeAudit) -> list[AuditedProcess]:
    """Return the processes that certainly bypassed their share's limits.

    A container whose name is unknown may have no share, so its processes are only foreign. Orphaned processes followed
    our rules until the records were lost. An MPS daemon lists its clients through a socket that clients can replace, so
    its list does not prove a bypass. None of these processes are killed.
    """
    bypassing = (process for process in audit.in_state(*BYPASSING) if process.reason != NOT_A_CLIENT)
    return [process for process in bypassing if process.container and not process.process.orphaned]


class _Processes:
    """Lookup tables for checking the processes of one scan."""

    def __init__(self, seen: Seen, pods: Sequence[PodJson], node: GpuNode | None) -> None:
        self._unreachable = seen.unreachable
        self._mps_clients = seen.mps_clients
        self._pods = {pod.uid(manifest): manifest for manifest in pods}
        self._node = node
        self._modes = {gpu.uuid: gpu.mode for gpu in seen.gpus}
        self.driver_limits = _DriverLimits(seen)
        self._tenants: dict[Container, Tenant | Refusal | NotYet] = {}
        self._members: dict[tuple[str, ProcessIdentity], tuple[SeenShare, int]] = {}
        for share in seen.shares:
            for gpu, grant in enumerate(share.tenant.grants):
                for member in share.members:
                    self._members[grant.uuid, member.identity] = (share, member.charged_bytes[gpu])

    def check(self, process: SeenProcess) -> AuditedProcess:
        """Classify a process by this scan alone."""
        known = self._members.get((process.gpu, process.identity))
        named = self._named(process.container)
        if known is not None:
            of, charged_bytes = known
            name = (of.tenant.namespace, of.tenant.pod)
            by_driver = self.driver_limits.cover(process, of.tenant.pod_uid)
            enforcement = MemoryEnforcement.DRIVER if by_driver else MemoryEnforcement.LIBRARY
            audited = AuditedProcess(
                process, LimitState.LIMITED, *name, named[2], charged_bytes, memory_enforcement=enforcement
            )
            clients = self._mps_clients.get(process.gpu) if of.tenant.isolation is Isolation.MPS else None
            if clients is None or process.pid in clients:
                return audited
            around = (of.tenant.allocation, of.tenant.share)
            return dataclasses.replace(audited, state=LimitState.MEMORY_LIMITED, reason=NOT_A_CLIENT, place=around)
        holder = self._tenant(process.container) if process.container is not None else None
        state, reason = self._unregistered(process, holder)
        if state is not LimitState.UNLIMITED or not isinstance(holder, Tenant):
            return AuditedProcess(process, state, *named, reason=reason)
        enforcement = MemoryEnforcement.NONE
        if self.driver_limits.cover(process, holder.pod_uid):
            state, reason, enforcement = LimitState.MEMORY_LIMITED, MEMORY_ONLY + reason, MemoryEnforcement.DRIVER
        place = (holder.allocation, holder.share)
        return AuditedProcess(process, state, *named, reason=reason, place=place, memory_enforcement=enforcement)

    def _unregistered(self, process: SeenProcess, tenant: Tenant | Refusal | NotYet | None) -> tuple[LimitState, str]:
        mode = self._modes.get(process.gpu)
        if process.identity in self._unreachable:
            return LimitState.LIMITED, ""
        if process.mps_server:
            return LimitState.UNJUDGED, "it serves the GPU's MPS clients"
        if mode is not Mode.FRACTIONAL:
            return LimitState.UNJUDGED, f"the GPU is not shared by annotation: its mode is {mode}"
        if isinstance(tenant, Tenant):
            if process.gpu not in {grant.uuid for grant in tenant.grants}:
                return LimitState.FOREIGN, ELSEWHERE
            if process.orphaned:
                return LimitState.UNLIMITED, ORPHANED
            return LimitState.UNLIMITED, NO_LIBRARY if process.with_library is False else NOT_REGISTERED
        if tenant is None:
            return LimitState.FOREIGN, process.outside + MAY_DEPRIVE_SHARES
        # A pod's status lags a second behind its containers, but pods and allocations are known before they start.
        late = isinstance(tenant, NotYet) and tenant.missing is Missing.CONTAINER
        return (LimitState.UNJUDGED if late or self._node is None else LimitState.FOREIGN), tenant.reason

    def _tenant(self, container: Container) -> Tenant | Refusal | NotYet:
        if container not in self._tenants:
            manifest = self._pods.get(container.pod_uid)
            pods = (manifest,) if manifest is not None else ()
            self._tenants[container] = tenant.find(container, pods=pods, node=self._node)
        return self._tenants[container]

    def _named(self, container: Container | None) -> tuple[str, str, str]:
        manifest = self._pods.get(container.pod_uid) if container is not None else None
        if container is None or manifest is None:
            return "", "", ""
        return *pod.namespaced_name(manifest), tenant.container_name(manifest, container.container_id) or ""


class _DriverLimits:
    """The driver's memory limits of one scan, on the GPUs where the driver keeps limits."""

    def __init__(self, seen: Seen) -> None:
        self._able = {gpu.uuid for gpu in seen.gpus if gpu.memory_enforcement is MemoryEnforcement.DRIVER}
        self._states = collections.defaultdict[tuple[str, str], list[HardLimitState]](list)  # by GPU and pod UID
        for state in seen.driver_limits:
            if state.wanted.gpu in self._able:
                self._states[state.wanted.gpu, state.wanted.pod_uid].append(state)

    def cover(self, process: SeenProcess, pod_uid: str) -> bool:
        """Whether the driver keeps the memory of this process of the pod within its limits."""
        states = self._states.get((process.gpu, pod_uid), ())
        # The container's cgroup was found below the pod's, so both limits hold for the process.
        container_id = process.container.container_id if process.container is not None else None
        return _are_in_force(states) and any(state.wanted.container_id == container_id for state in states)

    def compare(self, share: AuditedShare, pod_uid: str) -> AuditedShare:
        """Return the share with the driver's limit, and with the reason if that is not as it should be."""
        states = self._states.get((share.gpu, pod_uid), ())
        own = [state for state in states if state.wanted.container in share.containers]
        hard_bytes = min((state.limits.hard_bytes for state in own or states), default=nvml_limits.NO_LIMIT)
        problem = next((state.problem for state in states if state.problem), "")
        if share.gpu in self._able and share.processes and not states:
            problem = "it has no limit by the driver yet"
        return dataclasses.replace(
            share,
            memory_enforcement=MemoryEnforcement.DRIVER if own and _are_in_force(states) else MemoryEnforcement.LIBRARY,
            driver_bytes=None if hard_bytes == nvml_limits.NO_LIMIT else hard_bytes,
            reason=share.reason or problem,
        )


def _are_in_force(states: Sequence[HardLimitState]) -> bool:
    """Whether these limits of a pod on a GPU are in force, the pod's own among them."""
    return any(not state.wanted.container_id for state in states) and not any(state.problem for state in states)


def _check_shares(
    seen: Seen,
    driver_limits: _DriverLimits,
    node: GpuNode,
    pods: Iterable[PodJson],
    processes: Iterable[AuditedProcess],
    suspects: frozenset[Hashable],
) -> tuple[tuple[AuditedShare, ...], frozenset[Hashable]]:
    """Return every share of the GPUNode on each of its GPUs, and running shares that it lacks; and the next suspects.

    processes: already checked. Those that bypassed their share's limits are confirmed, so they count immediately.
    """
    around = collections.defaultdict[_SharePlace, list[AuditedProcess]](list)
    for process in processes:
        if process.state in BYPASSING and process.place is not None:
            around[*process.place, process.process.gpu].append(process)
    shares, waiting = [], set()
    uids = tenant.pod_uids(pods, node)
    for place, found in _compared(seen.shares, node, seen.overuse):
        share = driver_limits.compare(found, found.pod_uid or uids.get(place[0], ""))
        if share.reason:
            waiting.add(("share", *place))
        differs = share.reason if ("share", *place) in suspects else ""
        reason = _got_around(around[place]) or differs or (share.overuse.sentence if share.overuse is not None else "")
        more = quantity.format_bytes(share.beyond_bytes)
        memory = f"including contexts, it exceeds its limit by {more}: it gets no more memory until it frees that much"
        shares.append(
            dataclasses.replace(
                share,
                in_force=not reason,
                reason=reason or (memory if share.beyond_bytes else ""),
                memory_enforcement=_weakest(share, *around[place]),
            )
        )
    return tuple(shares), frozenset(waiting)


def _compared(
    seen: Iterable[SeenShare], node: GpuNode, beyond: Mapping[tuple[str, str], Overuse]
) -> Iterator[tuple[_SharePlace, AuditedShare]]:
    """Yield each share with its place. Its reason says how it differs from the GPUNode; empty if it does not."""
    by_place: dict[tuple[str, int], SeenShare] = {}
    for seen_share in seen:
        entry = tenant.find_allocation(seen_share.tenant, node)
        if entry is not None:
            by_place[entry.id, seen_share.tenant.share] = seen_share
            continue
        for gpu, grant in enumerate(seen_share.tenant.grants):
            of = seen_share.tenant
            share = AuditedShare(
                of.namespace, of.pod, of.containers, grant.uuid, 0, 0, 0, reason=GONE, pod_uid=of.pod_uid
            )
            yield (of.key, of.share, grant.uuid), _measured(share, seen_share, gpu, beyond)
    for entry in node.allocations:
        for position, ledger_share in enumerate(() if entry.is_backfill_reservation else entry.shares):
            amounts = (ledger_share.request_percent, ledger_share.limit_percent, ledger_share.memory_bytes)
            for gpu, uuid in enumerate(ledger_share.gpu_uuids):
                share = AuditedShare(entry.pod.namespace, entry.pod.name, ledger_share.containers, uuid, *amounts)
                running = by_place.get((entry.id, position))
                pod_uid = running.tenant.pod_uid if running is not None else entry.pod.uid
                share = dataclasses.replace(share, pod_uid=pod_uid)
                if running is not None:
                    share = _measured(share, running, gpu, beyond)
                    without = sum(member.with_library is False for member in running.members)
                    own_bytes, most_bytes = ledger_share.memory_bytes, tenant.memory_bytes(node, entry, position)
                    # The limit rises after the status, and falls before it.
                    may_bytes = range(own_bytes, most_bytes + 1) if most_bytes > own_bytes else {own_bytes, most_bytes}
                    if entry.labels.isolation is Isolation.NONE:
                        may_bytes = {tenant.UNLIMITED_BYTES}
                    reason = f"the library is not loaded in {without} of its {share.processes} processes"
                    share = dataclasses.replace(
                        share, reason=_difference(share, may_bytes) or (reason if without else "")
                    )
                yield (entry.id, position, uuid), share


def _measured(
    share: AuditedShare, seen: SeenShare, gpu: int, beyond: Mapping[tuple[str, str], Overuse]
) -> AuditedShare:
    return dataclasses.replace(
        share,
        enforced=seen.enforced[gpu],
        charged_bytes=sum(member.charged_bytes[gpu] for member in seen.members),
        processes=len(seen.members),
        with_library=sum(member.with_library is True for member in seen.members),
        overuse=beyond.get((share.gpu, seen.tenant.key)),
    )


def _difference(share: AuditedShare, may_bytes: Collection[int]) -> str:
    enforced = share.enforced
    assert enforced is not None  # noqa: S101 - only of shares that have processes
    compute = (enforced.request_percent, enforced.limit_percent) == (share.request_percent, share.limit_percent)
    if compute and enforced.memory_bytes in may_bytes:  # also the smaller size while the share is shrinking
        return ""
    amounts = _amounts(enforced.request_percent, enforced.limit_percent, enforced.memory_bytes)
    granted = _amounts(share.request_percent, share.limit_percent, share.limit_bytes)
    return f"its processes run with {amounts}, but the GPUNode grants {granted}"


def _got_around(processes: Sequence[AuditedProcess]) -> str:
    if not processes:
        return ""
    names = ", ".join(f"{process.process.name} ({process.process.pid})" for process in processes[:_MAX_NAMED])
    more = f" and {len(processes) - _MAX_NAMED} more" if len(processes) > _MAX_NAMED else ""
    if all(process.state is LimitState.MEMORY_LIMITED for process in processes):
        return f"{names}{more} bypassed its compute limit; the {_weakest(*processes)} keeps its memory limit"
    return f"{names}{more} bypassed its limits"


def _weakest(*audited: AuditedProcess | AuditedShare) -> MemoryEnforcement:
    return min((one.memory_enforcement for one in audited), key=_STRENGTH.index)


def _amounts(request_percent: int, limit_percent: int, memory_bytes: int) -> str:
    memory = quantity.format_bytes(memory_bytes)
    return f"a request of {request_percent}%, a limit of {limit_percent}% and {memory} of memory"
