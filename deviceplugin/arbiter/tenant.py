"""Finds the share of a container in this node's pods and the GPUNode. Pure.

The process's cgroup contains the pod's UID. The pod's annotation names its allocation, but counts only if the GPUNode
agrees: users can write pods and cannot write GPUNodes.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from deviceplugin.host.kernel_process import Container
from gpushare import contract, pod
from gpushare.allocation import Allocation, GivenShare, Isolation, MigInstance, slot
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

Holder = tuple[PodJson, GpuNode]  # a pod, and a GPUNode with its allocation
UNLIMITED_BYTES: Final = (1 << 63) - 1  # more than any GPU has


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """The amounts that a share has of one GPU."""

    uuid: str
    memory_bytes: int
    request_percent: int
    limit_percent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """A share: its containers, and its grants of GPUs. `share` is its position in `allocation`."""

    pod_uid: str
    namespace: str
    pod: str
    containers: tuple[str, ...]
    share: int
    grants: tuple[Grant, ...]
    latency: bool = False
    allocation: str = ""  # its id; empty in records of agents without resizing
    group: str = ""  # namespace and name; the group's shares are scheduled together
    isolation: Isolation = Isolation.ARBITER
    memory_limit_bytes: int | None = None  # up to which memory may be lent to it

    @property
    def memory_bytes(self) -> int:
        return min((grant.memory_bytes for grant in self.grants), default=0)

    @property
    def enforced(self) -> tuple[Grant, ...]:
        """The grants that the limits page has: without a memory limit if nothing is enforced."""
        if self.isolation is not Isolation.NONE:
            return self.grants
        return tuple(dataclasses.replace(grant, memory_bytes=UNLIMITED_BYTES) for grant in self.grants)

    def on_gpus(self, parents: Mapping[str, str]) -> Tenant:
        """Return the share with the GPUs of its MIG devices. parents: the GPU of each device, both by UUID."""
        if not parents:
            return self
        grants = (dataclasses.replace(grant, uuid=parents.get(grant.uuid, grant.uuid)) for grant in self.grants)
        return dataclasses.replace(self, grants=tuple(grants))

    @property
    def key(self) -> str:
        return f"{self.pod_uid}-{self.share}"


@dataclasses.dataclass(frozen=True, slots=True)
class StartingContainer:
    """A container that is about to start: its pod, its GPUs, its RuntimeClass (empty for none), its share's limit.

    slot: as of `allocation.slot`.
    """

    namespace: str
    pod: str
    uuids: tuple[str, ...]
    runtime_class: str = ""
    pod_uid: str = ""
    isolation: Isolation = Isolation.ARBITER
    limit_percent: int = 100
    slot: str = ""
    mig: MigInstance | None = None  # of a share with the isolation mig


class Missing(enum.Enum):
    """The kind of object that is not known yet."""

    POD = "pod"
    ALLOCATION = "allocation"
    CONTAINER = "container"


@dataclasses.dataclass(frozen=True, slots=True)
class NotYet:
    """No answer yet, because an object is missing. `reason` is the refusal if it does not appear."""

    missing: Missing
    reason: str


def find(container: Container, *, pods: Iterable[PodJson], node: GpuNode | None) -> Tenant | Refusal | NotYet:
    """Find the share of a container. `pods`: of this node. `node`: its GPUNode, or None if unknown."""
    manifest = next((manifest for manifest in pods if pod.uid(manifest) == container.pod_uid), None)
    if manifest is None:
        return NotYet(Missing.POD, f"this node has no pod with the UID {container.pod_uid}")
    namespace, name = pod.namespaced_name(manifest)
    entry = allocation_of(manifest, node)
    if not isinstance(entry, Allocation):
        return entry
    assert node is not None  # noqa: S101 - it has the entry
    called = container_name(manifest, container.container_id)
    if called is None and len(entry.shares) > 1:
        return NotYet(
            Missing.CONTAINER,
            f"the status of the pod {namespace}/{name} does not list the container {container.container_id} yet",
        )
    # If the pod has only one share, an unnamed container belongs to it: no other one gets the library and the socket.
    for position, share in enumerate(entry.shares):
        if called is None or called in share.containers:
            # Lent memory is left out: the arbiter raises the limit once it knows what the GPUNode says now.
            grants = _grants(share, min(share.memory_bytes, memory_bytes(node, entry, position)))
            group = pod.annotations_of(manifest).get(contract.GROUP, "").strip()
            gang = f"{namespace}/{group}" if group else ""
            tenant = Tenant(
                container.pod_uid,
                namespace,
                name,
                share.containers,
                position,
                grants,
                latency=entry.latency,
                allocation=entry.id,
                group=gang,
                isolation=entry.labels.isolation,
                memory_limit_bytes=share.memory_limit_bytes,
            )
            return invalid(tenant) or tenant
    return Refusal(f"the container {called} of the pod {namespace}/{name} has no share of a GPU")


def find_by_name(
    namespace: str, name: str, container: str, *, pods: Iterable[PodJson], node: GpuNode | None
) -> StartingContainer | Refusal | NotYet:
    # Finished pods of the same name may still be listed.
    known = [
        manifest
        for manifest in pods
        if pod.namespaced_name(manifest) == (namespace, name) and not pod.is_terminal(manifest)
    ]
    if not known:
        return NotYet(Missing.POD, f"this node has no pod {namespace}/{name}")
    entry = allocation_of(known[-1], node)
    if not isinstance(entry, Allocation):
        return entry
    share = next((share for share in entry.shares if container in share.containers), None)
    if share is None:
        return Refusal(f"the container {container} of the pod {namespace}/{name} has no share of a GPU")
    return StartingContainer(
        namespace,
        name,
        share.gpu_uuids,
        pod.runtime_class(known[-1]),
        pod.uid(known[-1]),
        isolation=entry.labels.isolation,
        limit_percent=share.limit_percent,
        slot=slot(entry, share),
        mig=share.mig,
    )


def find_holder(uid: str, *, pods: Iterable[PodJson], node: GpuNode | None) -> Holder | Refusal | NotYet:
    """Find a pod with a share, by its UID, and a GPUNode with its allocation."""
    manifest = next((known for known in pods if pod.uid(known) == uid), None)
    if manifest is None:
        return NotYet(Missing.POD, f"this node has no pod with the UID {uid}")
    entry = allocation_of(manifest, node)
    if not isinstance(entry, Allocation):
        return entry
    assert node is not None  # noqa: S101 - it has the entry
    return manifest, node


def find_allocation(tenant: Tenant, node: GpuNode) -> Allocation | None:
    """Return the share's allocation, or None if the ledger no longer has the share on these GPUs."""
    for entry in node.allocations:
        is_it = entry.id == tenant.allocation or (not tenant.allocation and entry.pod.uid == tenant.pod_uid)
        if is_it and _belongs(entry, tenant.namespace, tenant.pod, tenant.pod_uid):
            there = entry.shares[tenant.share].gpu_uuids if tenant.share < len(entry.shares) else ()
            return entry if there == tuple(grant.uuid for grant in tenant.grants) else None
    return None


def updated(tenant: Tenant, entry: Allocation, memory_bytes: int) -> Tenant:
    share = entry.shares[tenant.share]
    return dataclasses.replace(
        tenant,
        grants=_grants(share, memory_bytes),
        latency=entry.latency,
        allocation=entry.id,
        isolation=entry.labels.isolation,
        memory_limit_bytes=share.memory_limit_bytes,
    )


def memory_bytes(node: GpuNode, entry: Allocation, position: int) -> int:
    """Return the highest memory limit that the share may have on each of its GPUs.

    That is the ledger's amount, less while the share shrinks, or more while memory is lent to it. It never exceeds the
    amount in the GPUNode's status, because the placer may be giving the rest to another share.
    """
    share = entry.shares[position]
    said = published_bytes(node, entry.id, position)
    if share.shrink_to_bytes is not None:
        return min(share.memory_bytes, share.shrink_to_bytes, said or share.memory_bytes)
    if said is None or said > share.memory_bytes:
        return max(share.memory_bytes, min(said or 0, share.memory_limit_bytes or 0))
    return said


def counted_bytes(node: GpuNode, entry: Allocation, position: int) -> int:
    """Return the memory that the ledger counts for the share on each of its GPUs, lent memory included."""
    return max(entry.shares[position].memory_bytes, published_bytes(node, entry.id, position) or 0)


def published_bytes(node: GpuNode, identity: str, position: int) -> int | None:
    """Return the share's limit in the GPUNode's status; None if it has no entry."""
    said = (resize for resize in node.resizes if (resize.allocation, resize.share) == (identity, position))
    return next((resize.memory_bytes for resize in said), None)


def raw_uuid(text: str) -> bytes:
    """Return the 16 bytes of `GPU-…` or `MIG-…`. Raises ValueError for anything else."""
    kind, _, number = text.partition("-")
    if kind not in {"GPU", "MIG"}:
        raise ValueError(f"{text} is not a GPU's UUID")
    return uuid.UUID(number).bytes


def invalid(tenant: Tenant) -> Refusal | None:
    """Return why the share does not fit into a limits page, or None if it does."""
    if len(tenant.grants) > contract.MAX_GPUS:
        return Refusal(f"the share has {len(tenant.grants)} GPUs, but a container can have {contract.MAX_GPUS} at most")
    for grant in tenant.grants:
        if not (0 <= grant.memory_bytes < 2**63 and 0 <= grant.request_percent <= grant.limit_percent <= 100):
            return Refusal(f"the allocation of the pod {tenant.namespace}/{tenant.pod} has amounts out of range")
        try:
            raw_uuid(grant.uuid)
        except ValueError:
            where = f"the allocation of the pod {tenant.namespace}/{tenant.pod}"
            return Refusal(f"{where} has the invalid GPU UUID {grant.uuid}")
    return None


def _grants(share: GivenShare, memory_bytes: int) -> tuple[Grant, ...]:
    return tuple(Grant(uuid, memory_bytes, share.request_percent, share.limit_percent) for uuid in share.gpu_uuids)


def allocation_of(manifest: PodJson, node: GpuNode | None) -> Allocation | Refusal | NotYet:
    """Return the pod's allocation, if the ledger confirms that it belongs to the pod."""
    namespace, name = pod.namespaced_name(manifest)
    identity = pod.annotations_of(manifest).get(contract.ALLOCATION)
    if not identity:
        return Refusal(f"the pod {namespace}/{name} has no allocation: it asks for no share of a GPU")
    there = node.allocations if node is not None else ()
    entry = next((allocation for allocation in there if allocation.id == identity), None)
    if entry is None:
        return NotYet(
            Missing.ALLOCATION, f"the allocation {identity} of the pod {namespace}/{name} is not in this node's GPUNode"
        )
    if not _belongs(entry, namespace, name, pod.uid(manifest)):
        return Refusal(f"the allocation {identity} is held by {entry.pod}, not by the pod {namespace}/{name}")
    return entry


def pod_uids(pods: Iterable[PodJson], node: GpuNode | None) -> dict[str, str]:
    """Return the UIDs of the pods with a share, by the allocation's ID."""
    entries = ((manifest, allocation_of(manifest, node)) for manifest in pods)
    return {entry.id: pod.uid(manifest) for manifest, entry in entries if isinstance(entry, Allocation)}


def _belongs(entry: Allocation, namespace: str, name: str, uid: str) -> bool:
    holder = entry.pod
    return holder.namespace == namespace and holder.name in {"", name} and holder.uid in {"", uid}


def container_name(manifest: PodJson, container_id: str) -> str | None:
    """Return the container's name in the pod, or None while the pod's status lacks this id."""
    status: Mapping[str, Any] = manifest.get("status") or {}
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for entry in status.get(kind) or []:
            if str(entry.get("containerID", "")).rpartition("://")[2] == container_id:
                return str(entry.get("name", ""))
    return None
