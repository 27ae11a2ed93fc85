"""What a share container gets from the kubelet: the same three mounts, and nothing else.

Allocate cannot know which pod it is called for, and need not: the GPU is in the pod's environment, and the limits are
the arbiter's to give, which asks the kernel who is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from gpushare import contract


@dataclasses.dataclass(frozen=True, slots=True)
class Mounts:
    """Where on the host the things lie that a share container gets."""

    library: Path
    preload_file: Path
    arbiter_directory: Path


class ShareAnswers:
    """Answers for the counters of shares, as `service.Answers`."""

    has_preference = False  # ids are counters

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts

    def allocate(self, _: str, __: Sequence[str]) -> messages.ContainerAllocateResponse:
        """The mounts."""
        return messages.ContainerAllocateResponse(
            mounts=[
                _read_only(contract.CONTAINER_LIBRARY, self._mounts.library),
                _read_only(contract.CONTAINER_PRELOAD_FILE, self._mounts.preload_file),
                # Connecting to a socket writes nothing to the file system, so read-only is enough for it too.
                _read_only(contract.CONTAINER_ARBITER_DIRECTORY, self._mounts.arbiter_directory),
            ]
        )

    def preferred(self, _: str, *, available: Sequence[str], required: Sequence[str], size: int) -> Sequence[str]:
        """Any."""
        rest = [identity for identity in available if identity not in set(required)]
        return [*required, *rest][:size]


def _read_only(container_path: str, host_path: Path) -> messages.Mount:
    return messages.Mount(container_path=container_path, host_path=str(host_path), read_only=True)
