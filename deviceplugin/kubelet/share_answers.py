"""What a share container gets from the kubelet: three mounts, and where devices are given by CDI, a name.

Allocate cannot know which pod it is called for, and need not: the limits are the arbiter's to give, which asks the
kernel who is there, and NVIDIA's runtime goes by the environment, into which the webhook wrote the GPU. A name of CDI
is made of the ids, and stands for nothing until it is known whose container it is: see `share_start`.
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


@dataclasses.dataclass(frozen=True, slots=True)
class Mounts:
    """Where on the host the things lie that a share container gets."""

    library: Path
    preload_file: Path
    arbiter_directory: Path


class ShareAnswers:
    """Answers for the counters of shares, as `service.Answers`. Without `start` nothing but the mounts is given.

    Any id is good. The kubelet may have chosen one a moment before it heard that the node has fewer, and a pod that is
    refused here does not come back.

    allocated: called with the resource and the ids of each container. stale_devices: of the kubelet that is answered.
    """

    has_preference = False  # ids are counters

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
    def starts(self) -> bool:
        """Whether something is left to be done when it is known whose container it is."""
        return self._start is not None and self._start.is_needed

    def allocate(self, resource: str, device_ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        """The mounts, and the name."""
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
                # Connecting to a socket writes nothing to the file system, so read-only is enough for it too.
                _read_only(contract.CONTAINER_ARBITER_DIRECTORY, self._mounts.arbiter_directory),
            ],
            annotations=answer.annotations,
            cdi_devices=[messages.CDIDevice(name=device) for device in answer.devices],
        )

    def stale_devices(self, resource: str) -> int | None:
        """As many as the kubelet counts for pods that are no more: one counter is as good as another."""
        return self._stale_devices(resource)

    def preferred(self, _: str, *, available: Sequence[str], required: Sequence[str], size: int) -> Sequence[str]:
        """Any ids will do: they are plain counters."""
        rest = [identity for identity in available if identity not in set(required)]
        return [*required, *rest][:size]

    async def start(self, resource: str, device_ids: Sequence[str]) -> None:
        """Have the name stand for the GPUs of this container. Raises AllocateRefusedError."""
        if self._start is not None:
            await self._start(resource, device_ids)


def _read_only(container_path: str, host_path: Path) -> messages.Mount:
    return messages.Mount(container_path=container_path, host_path=str(host_path), read_only=True)


KUBELET_START_SECONDS: Final = 60.0  # in which it is told of its first pods, even by a slow API server


class StaleAllocations:
    """Of the kubelet in a directory of plugins.

    living: the UIDs of the pods that are not over; clock: the time of day in seconds, as files have it.
    """

    def __init__(
        self, directory: Path, *, living: Callable[[], Container[str]], clock: Callable[[], float] = time.time
    ) -> None:
        self._checkpoint = directory / kubelet_checkpoint.NAME
        self._socket = directory / plugin_registration.KUBELET_SOCKET
        self._living = living
        self._clock = clock

    def count(self, resource: str) -> int | None:
        """How many devices of this resource it counts for pods that are no more; None once its first minute is over.

        One too many does no harm, as the ledger decides who comes. So a pod that was not heard of yet counts as over.
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
