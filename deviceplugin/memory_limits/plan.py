"""Which hard limit each cgroup of a pod should have on each GPU, and how it differs from what the driver reports. Pure.

A container's limit is what its programs see as the size of the GPU. The pod's limit is the sum for its containers: it
holds before the containers' cgroups exist, and for programs that never register. Only hard limits are set. A soft limit
would stay reserved if its cgroup disappeared first, so any that is found is cleared.

A limit is the share's memory and the size of one CUDA context. The ledger charges contexts to the share, so programs
with the library stay below it, even if their driver's own memory grows before the agent has measured that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.hardware.nvml_limits import NO_LIMIT, MemoryLimits
from deviceplugin.host.kernel_process import Container
from gpushare import allocation, pod
from gpushare.allocation import Allocation, Isolation, Steps
from gpushare.gpunode import Gpu, GpuNode, MemoryEnforcement, Resize
from gpushare.pod import PodJson

ROUNDING_BYTES: Final = 2 << 20  # a page of GPU memory: the driver may round a limit to it

Place = tuple[str, Path]  # the UUID of a GPU, and a cgroup's directory


@dataclasses.dataclass(frozen=True, slots=True)
class PodCgroup:
    """A pod's cgroup, and those of its containers by container ID."""

    directory: Path
    containers: Mapping[str, Path] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class HardLimit:
    """The hard limit that a cgroup should have on a GPU. container, container_id: empty for the pod's cgroup."""

    gpu: str
    cgroup: Path
    hard_bytes: int
    namespace: str
    pod: str
    pod_uid: str
    container: str = ""
    container_id: str = ""

    @property
    def place(self) -> Place:
        return self.gpu, self.cgroup


@dataclasses.dataclass(frozen=True, slots=True)
class HardLimitState:
    """A hard limit, and the limits that the driver reported last. problem: why it is not in force, or ""."""

    wanted: HardLimit
    limits: MemoryLimits
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LimitInputs:
    """The inputs of the limits besides the ledger.

    gpus: the memory of the GPUs on which the driver keeps limits, by UUID. context_bytes: returns the size of a context
    on a GPU. running: the limit that the processes of a share have now, by the share's key: while a share shrinks, it
    is the higher one. applied: the resizes by the arbiter's last answer.
    """

    gpus: Mapping[str, int]
    context_bytes: Callable[[str], int] = lambda _: 0
    running: Mapping[str, int] = dataclasses.field(default_factory=dict)
    applied: Sequence[Resize] = ()

    def memory_bytes(self, node: GpuNode, entry: Allocation, position: int) -> int:
        """Return the memory that the processes of a share may have, by the ledger and by the arbiter.

        A share that shrinks keeps its memory until the arbiter has lowered the library's limit, whose processes the
        agent may not know yet. It never exceeds the GPUNode's status, as the rest may belong to another share.
        """
        share, place = entry.shares[position], (entry.id, position)
        said = (resize.memory_bytes for resize in node.resizes if (resize.allocation, resize.share) == place)
        applied = (resize.memory_bytes for resize in self.applied if (resize.allocation, resize.share) == place)
        applied_bytes = next(applied, share.memory_bytes)
        if share.shrink_to_bytes is None:
            # Lent memory counts while it is published and the arbiter has not lowered it.
            may_bytes = tenant.memory_bytes(node, entry, position)
            return min(may_bytes, max(share.memory_bytes, applied_bytes))
        return min(share.memory_bytes, max(share.shrink_to_bytes, applied_bytes), *said)

    def hard_bytes(self, gpu: str, share_key: str, memory_bytes: int) -> int:
        """Return the limit for a share with this much memory. The driver accepts none above the GPU's memory."""
        held_bytes = max(memory_bytes, self.running.get(share_key, 0))
        return min(held_bytes + self.context_bytes(gpu), self.gpus[gpu])


def able(node: GpuNode | None, seen: Iterable[Gpu]) -> dict[str, int]:
    """Return the memory of the GPUs on which the driver keeps limits, by UUID.

    seen: the GPUs by the driver. A GPU that this agent has not read yet is as the GPUNode's status says.
    """
    known = {gpu.uuid: gpu for gpu in (*(node.gpus if node is not None else ()), *seen)}
    return {gpu.uuid: gpu.memory_bytes for gpu in known.values() if gpu.memory_enforcement is MemoryEnforcement.DRIVER}


def hard_limits(
    node: GpuNode, pods: Iterable[PodJson], cgroups: Mapping[str, PodCgroup], inputs: LimitInputs
) -> Iterator[HardLimit]:
    """Yield the hard limits of the pods with a share. cgroups: by pod UID; pods without one are left out."""
    for manifest in pods:
        there = cgroups.get(pod.uid(manifest))
        entry = tenant.allocation_of(manifest, node) if there is not None else None
        if there is None or not isinstance(entry, Allocation) or entry.labels.isolation is Isolation.NONE:
            continue
        yield from _of_pod(node, manifest, entry, there, inputs)
        for container_id, directory in there.containers.items():
            name = tenant.container_name(manifest, container_id)
            for position, share in enumerate(entry.shares):
                # As in `tenant.find`: with a single share, an unnamed container belongs to it.
                if name in share.containers or (name is None and len(entry.shares) == 1):
                    memory_bytes = inputs.memory_bytes(node, entry, position)
                    key = f"{pod.uid(manifest)}-{position}"
                    for gpu in inputs.gpus.keys() & share.gpu_uuids:
                        hard_bytes = inputs.hard_bytes(gpu, key, memory_bytes)
                        of = (*pod.namespaced_name(manifest), pod.uid(manifest), name or share.containers[0])
                        yield HardLimit(gpu, directory, hard_bytes, *of, container_id)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """The part of a share in its pod's limit on a GPU, and when it counts."""

    steps: Steps
    hard_bytes: int


def _of_pod(
    node: GpuNode, manifest: PodJson, entry: Allocation, there: PodCgroup, inputs: LimitInputs
) -> Iterator[HardLimit]:
    for gpu in sorted(inputs.gpus.keys() & entry.gpu_uuids):
        parts = []
        for position, share in enumerate(entry.shares):
            if gpu in share.gpu_uuids:
                memory_bytes = inputs.memory_bytes(node, entry, position)
                hard_bytes = inputs.hard_bytes(gpu, f"{pod.uid(manifest)}-{position}", memory_bytes)
                parts.append(_Part(share.steps, hard_bytes))
        most_bytes = min(allocation.peak(parts, lambda part: part.hard_bytes), inputs.gpus[gpu])
        yield HardLimit(gpu, there.directory, most_bytes, *pod.namespaced_name(manifest), pod.uid(manifest))


def of_container(
    container: Container, holder: Tenant, directory: Path, inputs: LimitInputs, *, node: GpuNode | None
) -> Iterator[HardLimit]:
    """Yield the hard limits of a container with this share, whose cgroup is `directory`.

    node: the GPUNode as last seen. The share may be newer.
    """
    of = (holder.namespace, holder.pod, holder.pod_uid, holder.containers[0], container.container_id)
    entry = tenant.find_allocation(holder, node) if node is not None else None
    may_bytes = inputs.memory_bytes(node, entry, holder.share) if node is not None and entry is not None else 0
    for grant in holder.grants:
        if grant.uuid in inputs.gpus:
            hard_bytes = inputs.hard_bytes(grant.uuid, holder.key, max(grant.memory_bytes, may_bytes))
            yield HardLimit(grant.uuid, directory, hard_bytes, *of)


def is_in_force(limit: HardLimit, limits: MemoryLimits) -> bool:
    """Whether the driver's limits are as wanted."""
    return limits.soft_bytes == 0 and abs(limits.hard_bytes - limit.hard_bytes) < ROUNDING_BYTES


def is_clear(limits: MemoryLimits) -> bool:
    return (limits.soft_bytes, limits.hard_bytes) == (0, NO_LIMIT)


def difference(limit: HardLimit, limits: MemoryLimits) -> str:
    """Return how the driver's limits differ from the wanted one, as a sentence; "" if they do not."""
    if is_in_force(limit, limits):
        return ""
    has = "no limit" if limits.hard_bytes == NO_LIMIT else f"a limit of {limits.hard_bytes} bytes"
    soft = f" and a soft limit of {limits.soft_bytes} bytes" if limits.soft_bytes else ""
    return f"the driver has {has}{soft} for {limit.cgroup} on {limit.gpu} instead of {limit.hard_bytes} bytes"


def lowered(node: GpuNode, resizes: Iterable[Resize], inputs: LimitInputs) -> dict[str, dict[int, int]]:
    """Return the shares that the arbiter has just lowered: by allocation and position, what the ledger counts for them.

    Resizes that are published are left out: their memory may belong to another share by now.
    """
    now = {(resize.allocation, resize.share): resize.memory_bytes for resize in resizes}
    published = {(resize.allocation, resize.share): resize.memory_bytes for resize in node.resizes}
    found: dict[str, dict[int, int]] = {}
    for entry in node.allocations:
        for position, share in enumerate(entry.shares):
            said_bytes = published.get((entry.id, position))
            counted_bytes = max(share.memory_bytes, said_bytes or 0)
            now_bytes = now.get((entry.id, position), share.memory_bytes)
            is_new = now_bytes < counted_bytes and now_bytes != said_bytes
            if is_new and inputs.gpus.keys() & share.gpu_uuids:
                found.setdefault(entry.id, {})[position] = counted_bytes
    return found


def confirmed(
    resizes: Iterable[Resize],
    lowered: Mapping[str, Mapping[int, int]],
    pods: Mapping[str, str],
    states: Sequence[HardLimitState] | None,
) -> tuple[Resize, ...]:
    """Return the resizes, those of `lowered` shares only as far as the driver confirms them.

    pods: UIDs by allocation; one without a pod has nothing running. states: None if unknown.
    """
    used: dict[str, int] = {}  # of pods that hold more than their limit, or whose limit is not in force
    for state in states or ():
        if not state.wanted.container and (state.problem or state.limits.used_bytes > state.wanted.hard_bytes):
            used[state.wanted.pod_uid] = max(used.get(state.wanted.pod_uid, 0), state.limits.used_bytes)
    result = {(resize.allocation, resize.share): resize for resize in resizes}
    for identity, counted in lowered.items():
        uid = pods.get(identity)
        if uid is None or (states is not None and uid not in used):
            continue
        for position, counted_bytes in counted.items():
            known = result.get((identity, position), Resize(identity, position, 0, 0))
            used_bytes = max(known.used_bytes, used.get(uid, 0))
            result[identity, position] = dataclasses.replace(known, memory_bytes=counted_bytes, used_bytes=used_bytes)
    return tuple(result[place] for place in sorted(result))
