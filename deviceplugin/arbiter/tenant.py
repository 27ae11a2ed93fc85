"""What a container was given: from the pods of this node and the ledger. Pure.

The pod is found by the UID that the kernel's cgroup names. Its annotation says which allocation is its own, and is
believed only if the GPUNode says the same of that allocation: users cannot write GPUNodes.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from deviceplugin.host.identity import Container
from gpushare import contract, pod
from gpushare.allocation import Allocation, GivenShare
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson
from gpushare.refusal import Refusal


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """What there is to use on one GPU."""

    uuid: str
    memory_bytes: int
    request_percent: int
    limit_percent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """One share: the containers that use it together, and what they may use. `share` is its place in `allocation`."""

    pod_uid: str
    namespace: str
    pod: str
    containers: tuple[str, ...]
    share: int
    grants: tuple[Grant, ...]
    latency: bool = False
    allocation: str = ""  # its id; an agent that did not know of resizing left none
    group: str = ""  # with the namespace; its shares are served together

    @property
    def memory_bytes(self) -> int:
        """What it may hold on each of its GPUs."""
        return min((grant.memory_bytes for grant in self.grants), default=0)

    @property
    def key(self) -> str:
        """A name that no other share on the node has, fit for a file."""
        return f"{self.pod_uid}-{self.share}"


@dataclasses.dataclass(frozen=True, slots=True)
class StartingContainer:
    """The GPUs of a container that is about to start, its pod, and the RuntimeClass that it names, empty for none."""

    namespace: str
    pod: str
    uuids: tuple[str, ...]
    runtime_class: str = ""
    pod_uid: str = ""


class Missing(enum.Enum):
    """What is not known yet, and may become known."""

    POD = "pod"
    ALLOCATION = "allocation"
    CONTAINER = "container"


@dataclasses.dataclass(frozen=True, slots=True)
class NotYet:
    """No answer yet; `reason` is the refusal's sentence should it stay so."""

    missing: Missing
    reason: str


def find(container: Container, *, pods: Iterable[PodJson], node: GpuNode | None) -> Tenant | Refusal | NotYet:
    """The share of `container`.

    pods: of this node; node: its GPUNode, None when it is unknown.
    """
    manifest = next((manifest for manifest in pods if pod.uid(manifest) == container.pod_uid), None)
    if manifest is None:
        return NotYet(Missing.POD, f"this node has no pod with the UID {container.pod_uid}")
    namespace, name = pod.namespaced_name(manifest)
    entry = _entry(manifest, node)
    if not isinstance(entry, Allocation):
        return entry
    assert node is not None  # noqa: S101 - it has the entry
    called = container_name(manifest, container.container_id)
    if called is None and len(entry.shares) > 1:
        return NotYet(
            Missing.CONTAINER,
            f"the status of the pod {namespace}/{name} does not show yet which container {container.container_id} is",
        )
    # An unnamed container of a pod with one share is one of that share: no other gets the library and the socket.
    for position, share in enumerate(entry.shares):
        if called is None or called in share.containers:
            grants = _grants(share, memory_bytes(node, entry, position))
            group = pod.annotations_of(manifest).get(contract.GROUP, "").strip()
            tenant = Tenant(
                container.pod_uid,
                namespace,
                name,
                share.containers,
                position,
                grants,
                entry.latency,
                entry.id,
                f"{namespace}/{group}" if group else "",
            )
            return invalid(tenant) or tenant
    return Refusal(f"the container {called} of the pod {namespace}/{name} has no share of a GPU")


def find_by_name(
    namespace: str, name: str, container: str, *, pods: Iterable[PodJson], node: GpuNode | None
) -> StartingContainer | Refusal | NotYet:
    """The GPUs of a container by its name, which no runtime has made yet."""
    # Of two pods of one name the one that is over is still listed.
    known = [
        manifest
        for manifest in pods
        if pod.namespaced_name(manifest) == (namespace, name) and not pod.is_terminal(manifest)
    ]
    if not known:
        return NotYet(Missing.POD, f"this node has no pod {namespace}/{name}")
    entry = _entry(known[-1], node)
    if not isinstance(entry, Allocation):
        return entry
    share = next((share for share in entry.shares if container in share.containers), None)
    if share is None:
        return Refusal(f"the container {container} of the pod {namespace}/{name} has no share of a GPU")
    return StartingContainer(namespace, name, share.gpu_uuids, pod.runtime_class(known[-1]), pod.uid(known[-1]))


def find_allocation(tenant: Tenant, node: GpuNode) -> Allocation | None:
    """The allocation that a share belongs to; None when the ledger has that share no more, or on other GPUs."""
    for entry in node.allocations:
        is_it = entry.id == tenant.allocation or (not tenant.allocation and entry.pod.uid == tenant.pod_uid)
        if is_it and _belongs(entry, tenant.namespace, tenant.pod, tenant.pod_uid):
            there = entry.shares[tenant.share].gpu_uuids if tenant.share < len(entry.shares) else ()
            return entry if there == tuple(grant.uuid for grant in tenant.grants) else None
    return None


def updated(tenant: Tenant, entry: Allocation, memory_bytes: int) -> Tenant:
    """The same share, as its allocation has it now, with this memory."""
    grants = _grants(entry.shares[tenant.share], memory_bytes)
    return dataclasses.replace(tenant, grants=grants, latency=entry.latency, allocation=entry.id)


def with_memory(tenant: Tenant, memory_bytes: int) -> Tenant:
    """The same share with this memory on each GPU."""
    grants = tuple(dataclasses.replace(grant, memory_bytes=memory_bytes) for grant in tenant.grants)
    return dataclasses.replace(tenant, grants=grants)


def memory_bytes(node: GpuNode, entry: Allocation, position: int) -> int:
    """The most that the limit of a share may be set to on each of its GPUs.

    It is what the ledger counts, and less while the share is to shrink; and never more than we have said that it is
    held to: the placer may just be giving the rest to somebody else.
    """
    share = entry.shares[position]
    said = (resize.memory_bytes for resize in node.resizes if (resize.allocation, resize.share) == (entry.id, position))
    asked = share.memory_bytes if share.shrink_to_bytes is None else share.shrink_to_bytes
    return min(share.memory_bytes, asked, *said)


def raw_uuid(text: str) -> bytes:
    """The 16 bytes of `GPU-…` or `MIG-…`; ValueError if it is neither."""
    kind, _, number = text.partition("-")
    if kind not in {"GPU", "MIG"}:
        raise ValueError(f"{text} is not a GPU's UUID")
    return uuid.UUID(number).bytes


def invalid(tenant: Tenant) -> Refusal | None:
    """Why no page can say what it was given; None if one can."""
    if len(tenant.grants) > contract.MAX_GPUS:
        return Refusal(
            f"a share of {len(tenant.grants)} GPUs is more than the {contract.MAX_GPUS} a container can have"
        )
    for grant in tenant.grants:
        if not (0 <= grant.memory_bytes < 2**63 and 0 <= grant.request_percent <= grant.limit_percent <= 100):
            return Refusal(f"the allocation of the pod {tenant.namespace}/{tenant.pod} gives what nobody can have")
        try:
            raw_uuid(grant.uuid)
        except ValueError:
            return Refusal(
                f"the allocation of the pod {tenant.namespace}/{tenant.pod} names {grant.uuid}, no GPU's UUID"
            )
    return None


def _grants(share: GivenShare, memory_bytes: int) -> tuple[Grant, ...]:
    return tuple(Grant(uuid, memory_bytes, share.request_percent, share.limit_percent) for uuid in share.gpu_uuids)


def _entry(manifest: PodJson, node: GpuNode | None) -> Allocation | Refusal | NotYet:
    """The allocation of a pod, if the ledger says that it is the pod's."""
    namespace, name = pod.namespaced_name(manifest)
    identity = pod.annotations_of(manifest).get(contract.ALLOCATION)
    if not identity:
        return Refusal(f"the pod {namespace}/{name} has no allocation: it asks for no share of a GPU")
    entry = (
        next((allocation for allocation in node.allocations if allocation.id == identity), None)
        if node is not None
        else None
    )
    if entry is None:
        return NotYet(
            Missing.ALLOCATION, f"the allocation {identity} of the pod {namespace}/{name} is not in this node's GPUNode"
        )
    if not _belongs(entry, namespace, name, pod.uid(manifest)):
        return Refusal(f"the allocation {identity} is held by {entry.pod}, not by the pod {namespace}/{name}")
    return entry


def _belongs(entry: Allocation, namespace: str, name: str, uid: str) -> bool:
    holder = entry.pod
    return holder.namespace == namespace and holder.name in {"", name} and holder.uid in {"", uid}


def container_name(manifest: PodJson, container_id: str) -> str | None:
    """What the pod calls the container with this id; None while its status does not tell."""
    status: Mapping[str, Any] = manifest.get("status") or {}
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for entry in status.get(kind) or []:
            if str(entry.get("containerID", "")).rpartition("://")[2] == container_id:
                return str(entry.get("name", ""))
    return None
