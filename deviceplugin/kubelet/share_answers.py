"""Allocation of shares: the mounts and, where devices are injected by CDI, a CDI device name.

Allocate cannot know the pod that it is called for, and does not have to. The arbiter applies the limits: it asks the
kernel which container a process is in. NVIDIA's runtime reads the GPU from the environment, where the webhook wrote it.
A CDI name is derived from the device ids; `ShareStart` describes the device once the pod is known.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from pathlib import Path
from typing import Final, Protocol

from deviceplugin.allocation import answer
from deviceplugin.arbiter import tenant
from deviceplugin.denial import pod_denial
from deviceplugin.denial.pod_denial import PodDenial
from deviceplugin.injection.cdi_specs import SpecError, Specs
from deviceplugin.injection.decision import Injection
from deviceplugin.kubelet import plugin_registration, plugin_service
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.mps import sm_partitions
from deviceplugin.mps.shares import ClientFiles
from deviceplugin.state import pod_resources
from gpushare import contract, errors
from gpushare.allocation import Isolation, MigInstance
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import GpuNode
from gpushare.refusal import Refusal

KUBELET_START_SECONDS: Final = 60.0  # enough for the kubelet to get its first pods, even from a slow API server
_BY_CDI: Final = frozenset({Isolation.MIG, Isolation.MPS})  # the environment would give such a share the whole GPU


@dataclasses.dataclass(frozen=True, slots=True)
class Mounts:
    """The host paths that are mounted into share containers."""

    library: Path
    preload_file: Path
    arbiter_directory: Path


class ShareAnswers:
    """The `plugin_service.ContainerAllocator` for shares' counters. Without `start`, containers get only mounts.

    Any id is accepted. The kubelet may have chosen it just before the number of devices shrank, and a pod that is
    refused here fails permanently.

    allocated: called with the resource and the ids of each container. stale_devices: see `StaleAllocations.count`.
    """

    has_preference = False  # ids are interchangeable counters

    def __init__(
        self,
        mounts: Mounts,
        *,
        settings: Callable[[], NodeSettings] = NodeSettings,
        start: ShareStart | None = None,
        allocated: Callable[[str, Sequence[str]], None] = lambda *_: None,
        stale_devices: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self._mounts = mounts
        self._settings = settings
        self._start = start
        self._allocated = allocated
        self._stale_devices = stale_devices

    @property
    def needs_start(self) -> bool:
        return self._start is not None and self._start.is_needed

    def allocate(self, resource: str, device_ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        settings = self._settings()
        self._allocated(resource, device_ids)
        name = answer.cdi_share_name(device_ids)
        if self._start is not None:
            self._start.descriptions.remove_share(name)  # of an earlier container with these ids
        by_cdi = answer.cdi_answer(
            [f"{contract.CDI_SHARE_KIND}={name}"],
            settings.device_list_strategies,
            prefix=settings.cdi_annotation_prefix,
            answer_id=name,
        )
        return messages.ContainerAllocateResponse(
            mounts=[
                _read_only(contract.CONTAINER_LIBRARY, self._mounts.library),
                _read_only(contract.CONTAINER_PRELOAD_FILE, self._mounts.preload_file),
                _read_only(contract.CONTAINER_PRELOAD_FILE_OF_NIX, self._mounts.preload_file),
                # Connecting to a socket does not write to the file system, so read-only is enough for it too.
                _read_only(contract.CONTAINER_ARBITER_DIRECTORY, self._mounts.arbiter_directory),
            ],
            annotations=by_cdi.annotations,
            cdi_devices=[messages.CDIDevice(name=device) for device in by_cdi.devices],
        )

    def stale_devices(self, resource: str) -> int | None:
        """Return how many devices the kubelet still counts for ended pods; other counters can replace them."""
        return self._stale_devices(resource)

    def preferred(self, _: str, *, available: Sequence[str], required: Sequence[str], size: int) -> Sequence[str]:
        """Return any `size` ids: they are interchangeable."""
        rest = [identity for identity in available if identity not in set(required)]
        return [*required, *rest][:size]

    async def start(self, resource: str, device_ids: Sequence[str]) -> None:
        """Describe this container's GPUs under its CDI name. Raises AllocateRefusedError."""
        if self._start is not None:
            await self._start(resource, device_ids)


def _read_only(container_path: str, host_path: Path) -> messages.Mount:
    return messages.Mount(container_path=container_path, host_path=str(host_path), read_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class StaleAllocations:
    """Devices that a starting kubelet counts for pods that have ended.

    It admits its first pods by its checkpoint alone, and forgets ended pods only with a later pod:
    `UpdateAllocatedDevices` (`pkg/kubelet/cm/devicemanager/manager.go` of Kubernetes 1.36) does nothing until its first
    pods were admitted. So for its first minute the kubelet gets that many additional devices.

    directory: of the kubelet's device plugins. living: the UIDs of the pods that have not ended. clock: Unix seconds.
    """

    directory: Path
    _: dataclasses.KW_ONLY
    living: Callable[[], Container[str]]
    clock: Callable[[], float] = time.time

    def count(self, resource: str) -> int | None:
        """Return how many devices of this resource belong to ended pods; None after the kubelet's first minute.

        A pod that is not known yet counts as ended. Too high a count does no harm, because the ledger decides which
        pods run.
        """
        try:
            started = (self.directory / plugin_registration.KUBELET_SOCKET).stat().st_ctime
            if abs(self.clock() - started) >= KUBELET_START_SECONDS:
                return None
        except OSError:
            return None
        living = self.living()
        held = pod_resources.read_checkpoint(self.directory / pod_resources.CHECKPOINT_NAME).items()
        return len(frozenset[str]().union(*(ids.get(resource, ()) for uid, ids in held if uid not in living)))


class PodLimits(Protocol):
    """The driver's memory limits for pods."""

    def is_needed(self) -> bool: ...

    async def cover(self, pod_uid: str) -> str: ...


class MigDevices(Protocol):
    """The MIG devices of shares: each wait is bounded."""

    async def device(self, uuid: str, device: MigInstance) -> str | Refusal: ...

    async def whole(self, uuids: Sequence[str]) -> Refusal | None: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShareStart:
    """The work before a share container starts, where the environment alone does not select the GPU.

    PreStartContainer has the ids of the container, the kubelet's pod-resources API has the pod of these ids, and the
    pod's allocation has the GPUs. If the pod cannot be found, the start is refused: the kubelet reports the reason in
    the pod's status and retries. Denial of the devices to unregistered processes and the driver's memory limit for the
    pod start here too, because the pod's cgroup exists by now.

    held: all containers with devices, from the kubelet; raises PodResourcesError. find: the allocation of a container,
    by namespace, pod and container name. denied, memory_limits: cover a pod's cgroup. mps: what a container of this
    share gets of its GPU's MPS daemon, started if it does not run, or why it gets nothing now. mig: the MIG devices of
    shares. by_cdi: whether the node has shares, or GPUs cut for shares, whose devices only CDI injects rightly.
    borrows: whether another device plugin gives the node's GPUs; foreign: why a share on some of them may not start.
    """

    injection: Callable[[], Injection]
    settings: Callable[[], NodeSettings]
    held: Callable[[], Awaitable[Sequence[pod_resources.ContainerDevices]]]
    find: Callable[[str, str, str], Awaitable[tenant.StartingContainer | Refusal]]
    descriptions: Specs
    denied: PodDenial
    memory_limits: PodLimits
    mps: Callable[[str, str], Awaitable[ClientFiles | Refusal]]
    mig: MigDevices
    by_cdi: Callable[[], bool] = lambda: False
    borrows: Callable[[], bool] = lambda: False
    foreign: Callable[[Sequence[str]], str] = lambda _: ""

    @property
    def is_needed(self) -> bool:
        """Whether a container may be refused or needs preparation."""
        return self.denied.is_on or self.memory_limits.is_needed() or self._needs_owner(self.injection())

    def _needs_owner(self, injection: Injection) -> bool:
        """Whether the container's pod must be known to inject its devices."""
        return bool(injection.refusal or injection.needs_class or injection.uses_cdi) or self.by_cdi() or self.borrows()

    async def __call__(self, resource: str, device_ids: Sequence[str]) -> None:
        """Find the container that has these ids and prepare it. Raises AllocateRefusedError."""
        injection = self.injection()
        if injection.refusal:
            raise plugin_service.AllocateRefusedError(injection.refusal)
        if not self.is_needed:
            return
        name = answer.cdi_share_name(device_ids)
        pod_uid, holder = await self._given(resource, device_ids)
        try:
            self.denied.cover(holder.pod_uid if isinstance(holder, tenant.StartingContainer) else "")
        except pod_denial.DenialError as error:
            raise plugin_service.AllocateRefusedError(str(error)) from error
        if self.memory_limits.is_needed():
            unknown = f"the pod of this container is unknown: {holder.reason}" if isinstance(holder, Refusal) else ""
            problem = await self.memory_limits.cover(pod_uid) if pod_uid else unknown
            if problem:
                raise plugin_service.AllocateRefusedError(problem)
        if not self._needs_owner(injection):
            return
        if isinstance(holder, Refusal):
            # An earlier start of this container wrote the description: Allocate would have removed it.
            if injection.uses_cdi and self.descriptions.has_share(name):
                return
            raise plugin_service.AllocateRefusedError(f"the GPUs of this container are unknown: {holder.reason}")
        if foreign := self.foreign(holder.uuids):
            raise plugin_service.AllocateRefusedError(foreign)
        if not injection.allows(holder.runtime_class):
            raise plugin_service.AllocateRefusedError(
                f"the pod {holder.namespace}/{holder.pod} would get no GPU on this node: set runtimeClassName: "
                f"{injection.needs_class}"
            )
        if holder.isolation in _BY_CDI and not injection.uses_cdi:
            raise plugin_service.AllocateRefusedError(
                f"the pod {holder.namespace}/{holder.pod} has isolation {holder.isolation}, which needs devices by "
                "CDI: set deviceListStrategy to cdi-cri in the node's configuration, or delete and recreate the pod"
            )
        uuids = await self._devices(holder)
        if injection.uses_cdi:
            mps = await self._mps(holder)
            try:
                self.descriptions.write_share(name, uuids, self.settings(), mps)
            except SpecError as error:
                raise plugin_service.AllocateRefusedError(str(error)) from error

    async def _mps(self, holder: tenant.StartingContainer) -> answer.MpsPaths | None:
        """Return what an MPS client gets; None for another isolation. Raises AllocateRefusedError, for the next try."""
        if holder.isolation is not Isolation.MPS:
            return None
        files = await self.mps(holder.uuids[0], sm_partitions.key(holder.slot))
        if isinstance(files, Refusal):
            raise plugin_service.AllocateRefusedError(files.reason)
        partition = str(files.partition) if files.partition is not None else ""
        return answer.MpsPaths(
            str(files.daemon.clients), str(files.daemon.shm), max(1, holder.limit_percent), partition
        )

    async def _devices(self, holder: tenant.StartingContainer) -> Sequence[str]:
        """Return the UUIDs of the devices to inject, once they are as the share needs them.

        Raises AllocateRefusedError, for the next try.
        """
        if holder.isolation is Isolation.MIG:
            known = (
                await self.mig.device(holder.uuids[0], holder.mig)
                if holder.mig is not None
                else Refusal("its allocation has no MIG device")
            )
            if isinstance(known, Refusal):
                raise plugin_service.AllocateRefusedError(known.reason)
            return (known,)
        if (problem := await self.mig.whole(holder.uuids)) is not None:
            raise plugin_service.AllocateRefusedError(problem.reason)
        return holder.uuids

    async def _given(self, resource: str, device_ids: Sequence[str]) -> tuple[str, tenant.StartingContainer | Refusal]:
        """Find the UID of the pod of the container with these ids, or "", and the container's allocation."""
        ids: dict[tuple[str, str, str, str], set[str]] = collections.defaultdict(set)
        try:
            for container in await self.held():
                ids[container.resource, container.namespace, container.pod, container.container].update(
                    container.device_ids
                )
        except pod_resources.PodResourcesError as error:
            return "", Refusal(str(error))
        self.descriptions.keep_only_shares({answer.cdi_share_name(theirs) for theirs in ids.values()})
        holders = [owner for (held, *owner), theirs in ids.items() if (held, theirs) == (resource, set(device_ids))]
        if not holders:
            return "", Refusal(
                f"the kubelet reports no container with these {len(device_ids)} devices of {resource}: "
                f"init containers are listed only in the kubelet's file {pod_resources.CHECKPOINT_NAME}, which the "
                "agent must be able to read"
            )
        # The kubelet reuses an init container's ids for the containers that start after it.
        found = [await self.find(*owner) for owner in holders]
        pod_uids = {holder.pod_uid for holder in found if isinstance(holder, tenant.StartingContainer)}
        pod_uid = pod_uids.pop() if len(pod_uids) == 1 else ""
        if any(other != found[0] for other in found):
            names = " and ".join(errors.quoted(container) for _, _, container in holders)
            return pod_uid, Refusal(
                f"the containers {names} use the same {len(device_ids)} devices of {resource} in turn, but their "
                "shares are on different GPUs: request a different amount in one of them"
            )
        return pod_uid, found[0]


def have_own_devices(node: GpuNode | None) -> bool:
    """Whether the node has shares whose devices only CDI injects."""
    return node is not None and any(entry.labels.isolation in _BY_CDI for entry in node.allocations)
