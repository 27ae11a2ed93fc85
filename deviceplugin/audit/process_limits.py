"""What was seen, judged: which processes are held to a limit, and whether each share's limits are in force. Pure.

Nothing is held against anybody at first sight. Between a process's registering and its first memory, between its death
and the driver's noticing, between a change of the GPUNode and of the page, all is as it should be and looks as if it
were not; two seconds later it does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.tenant import Missing, NotYet, Tenant
from deviceplugin.audit import share_limits
from deviceplugin.audit.node_audit import (
    AuditedProcess,
    LimitState,
    NodeAudit,
    Problem,
    Seen,
    SeenProcess,
    SeenShare,
    Who,
)
from deviceplugin.host.identity import Container
from gpushare import pod
from gpushare.gpu import Mode
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

AGAIN: Final = ": to be judged by the next look"
TAKES: Final = ", and may take what was promised to shares"
ELSEWHERE: Final = "its container has a share, but not of this GPU"
GOT_AROUND: Final = "its container has a share of this GPU, but it is not registered with the arbiter"
LEFT_BEHIND: Final = (
    "it goes by limits that an agent before this one gave it and of which nothing was left: restart its container"
)
WITHOUT: Final = f"{GOT_AROUND}: the library is not in it (a static program, or the preload file was taken away)"
NOT_KNOWN: Final = Problem("pods and GPUNode are not known yet, so neither are the shares given")
_TO_BE_TOLD: Final = frozenset({LimitState.UNLIMITED, LimitState.FOREIGN})


def judge(
    seen: Seen, *, pods: Sequence[PodJson], node: GpuNode | None, suspects: frozenset[Hashable] = frozenset()
) -> NodeAudit:
    """The audit.

    pods, node: as the cluster has them, node None while that is unknown; suspects: those of the audit before.
    """
    processes = _Processes(seen, pods, node)
    judged, waiting = [], set()
    for process in seen.processes:
        audited = processes.judged(process)
        if audited.state in _TO_BE_TOLD:
            waiting.add(audited.key)
            if audited.key not in suspects:
                audited = dataclasses.replace(audited, state=LimitState.UNJUDGED, reason=audited.reason + AGAIN)
        judged.append(audited)
    problems = seen.problems
    if node is None:
        return NodeAudit(seen.gpus, tuple(judged), (), (*problems, NOT_KNOWN), frozenset(waiting))
    unseen = sum(member.with_library is None for share in seen.shares for member in share.members)
    if unseen:
        why = "the agent needs SYS_PTRACE, or those of one container have too much mapped for one look"
        problems = (*problems, Problem(f"{unseen} processes cannot be looked into: {why}"))
    of_node, differing = share_limits.judged(seen, node, judged, suspects)
    return NodeAudit(seen.gpus, tuple(judged), of_node, problems, frozenset(waiting) | differing)


def troubles(audit: NodeAudit) -> Mapping[Hashable, AuditedProcess]:
    """The processes that are to be told of, by what tells them apart."""
    return {process.key: process for process in audit.processes if process.state in _TO_BE_TOLD}


def to_be_ended(audit: NodeAudit) -> list[AuditedProcess]:
    """Those that got around their share's limits for certain, where such processes are killed.

    As long as its container has no name, it may be one without a share: then it is foreign, and nobody ends it. Nor one
    that went by our rules until we forgot of it.
    """
    return [
        process for process in audit.of(LimitState.UNLIMITED) if process.container and not process.process.left_behind
    ]


class _Processes:
    """What is looked up more than once."""

    def __init__(self, seen: Seen, pods: Sequence[PodJson], node: GpuNode | None) -> None:
        self._unreachable = seen.unreachable
        self._pods = {pod.uid(manifest): manifest for manifest in pods}
        self._node = node
        self._modes = {gpu.uuid: gpu.mode for gpu in seen.gpus}
        self._tenants: dict[Container, Tenant | Refusal | NotYet] = {}
        self._members: dict[tuple[str, Who], tuple[SeenShare, int]] = {}
        for share in seen.shares:
            for gpu, grant in enumerate(share.tenant.grants):
                for member in share.members:
                    self._members[grant.uuid, member.who] = (share, member.charged_bytes[gpu])

    def judged(self, process: SeenProcess) -> AuditedProcess:
        """The process by what was seen at this look alone."""
        known = self._members.get((process.gpu, process.who))
        named = self._named(process.container)
        if known is not None:
            of, charged_bytes = known
            return AuditedProcess(
                process, LimitState.LIMITED, of.tenant.namespace, of.tenant.pod, named[2], charged_bytes
            )
        tenant = self._tenant(process.container) if process.container is not None else None
        state, reason = self._unregistered(process, tenant)
        place = (
            (tenant.allocation, tenant.share) if state is LimitState.UNLIMITED and isinstance(tenant, Tenant) else None
        )
        return AuditedProcess(process, state, *named, reason=reason, place=place)

    def _unregistered(self, process: SeenProcess, tenant: Tenant | Refusal | NotYet | None) -> tuple[LimitState, str]:
        mode = self._modes.get(process.gpu)
        if process.who in self._unreachable:
            return LimitState.LIMITED, ""
        if mode is not Mode.FRACTIONAL:
            return LimitState.UNJUDGED, f"the GPU is not shared by annotation: its mode is {mode}"
        if isinstance(tenant, Tenant):
            if process.gpu not in {grant.uuid for grant in tenant.grants}:
                return LimitState.FOREIGN, ELSEWHERE
            if process.left_behind:
                return LimitState.UNLIMITED, LEFT_BEHIND
            return LimitState.UNLIMITED, WITHOUT if process.with_library is False else GOT_AROUND
        if tenant is None:
            return LimitState.FOREIGN, process.outside + TAKES
        # A pod's status is a second behind its containers; pods and allocations are known before any of them starts.
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
