"""What a kubelet that starts still counts: devices of pods that ended while it was away.

It judges the pods that it is told of first by its checkpoint alone. What is free by the ledger is not so for it, and a
pod that it refuses does not come back. It forgets pods that are no more with the first pod that comes after those:
`UpdateAllocatedDevices` (`pkg/kubelet/cm/devicemanager/manager.go` of Kubernetes 1.36) does nothing before all sources
are ready, and a source is ready once its first pods have been judged (`syncLoopIteration` in `pkg/kubelet/kubelet.go`).
So for its first minute it is told of as many devices more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final

from deviceplugin.kubelet import plugin_registration
from deviceplugin.state import kubelet_checkpoint

SECONDS: Final = 60.0  # in which it is told of its first pods, even by a slow API server


class LeftBehind:
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
            return abs(self._clock() - self._socket.stat().st_ctime) < SECONDS
        except OSError:
            return False
