"""Allocation of shares: the mounts and, where devices are injected by CDI, a CDI device name.

Allocate cannot know the pod that it is called for, and does not have to. The arbiter applies the limits: it asks the
kernel which container a process is in. NVIDIA's runtime reads the GPU from the environment, where the webhook wrote it.
A CDI name is derived from the device ids; `share_start` describes the device once the pod is known.

A kubelet that has just started still counts devices of pods that ended while it was down. It admits its first pods by
its checkpoint alone, so devices that are free in the ledger are not free for the kubelet, and a pod that it rejects
stays rejected. It forgets ended pods only with a later pod: `UpdateAllocatedDevices`
(`pkg/kubelet/cm/devicemanager/manager.go` of Kubernetes 1.36) does nothing until all sources are ready, and a source is
ready once its first pods were admitted (`syncLoopIteration` in `pkg/kubelet/kubelet.go`). So for its first minute the
kubelet gets that many additional devices.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.allocation import cdi
from deviceplugin.kubelet import plugin_registration
from deviceplugin.kubelet.share_start import ShareStart
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.state import kubelet_checkpoint
from gpushare import contract
from gpushare.config.node_settings import NodeSettings

KUBELET_START_SECONDS: Final = 60.0  # enough for the kubelet to get its first pods, even from a slow API server


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
        """Whether containers need `start` once their pod is known."""
        return self._start is not None and self._start.is_needed

    def allocate(self, resource: str, device_ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        """Return the mounts, and the CDI name if one is used."""
        settings = self._settings()
        self._allocated(resource, device_ids)
        name = cdi.share_name(device_ids)
        if self._start is not None:
            self._start.reset(name)
        answer = cdi.answer(
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
            annotations=answer.annotations,
            cdi_devices=[messages.CDIDevice(name=device) for device in answer.devices],
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


class StaleAllocations:
    """Devices that a starting kubelet counts for pods that have ended.

    directory: the kubelet's device plugin directory. living: the UIDs of the pods that have not ended. clock: Unix
    seconds, to compare with file times.
    """

    def __init__(
        self, directory: Path, *, living: Callable[[], Container[str]], clock: Callable[[], float] = time.time
    ) -> None:
        self._checkpoint = directory / kubelet_checkpoint.NAME
        self._socket = directory / plugin_registration.KUBELET_SOCKET
        self._living = living
        self._clock = clock

    def count(self, resource: str) -> int | None:
        """Return how many devices of this resource belong to ended pods; None after the kubelet's first minute.

        A pod that is not known yet counts as ended. Too high a count does no harm, because the ledger decides which
        pods run.
        """
        if not self._is_starting():
            return None
        living = self._living()
        held = kubelet_checkpoint.read(self._checkpoint).items()
        return len(frozenset[str]().union(*(ids.get(resource, ()) for uid, ids in held if uid not in living)))

    def _is_starting(self) -> bool:
        try:
            return abs(self._clock() - self._socket.stat().st_ctime) < KUBELET_START_SECONDS
        except OSError:
            return False
