"""Whether the devices have come into the containers with shares: seen in their processes, once a container.

Whatever was decided, this is what came of it: a runtime that ignores what it is told says nothing, and the program
only finds no GPU. What is read belongs to tenants: it is read in a thread, only so much of it, and proves nothing but
its lack.
"""

from __future__ import annotations

import asyncio
import collections
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from deviceplugin.arbiter import kernel_process
from deviceplugin.arbiter.identity import Container
from deviceplugin.arbiter.socket_server import Identify
from gpushare import contract, pod
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson

SECONDS: Final = 5.0
LOOKS: Final = 12  # at a container of which no process is seen, as of one in a virtual machine
_MOST_BYTES: Final = 1 << 20
_DRIVER: Final = re.compile(rb" \S*/(?:libcuda\.so|libnvidia-ml\.so)[^/ ]* ")
_GPU: Final = re.compile(r"nvidia[0-9]+|dxg")  # dxg: Windows' subsystem for Linux


class Arrivals:
    """Looks until cancelled. `missing`: the containers that run without devices, by pod and their own name.

    pods: of the node; node: the GPUNode, None while it is unknown. warn: an Event with this reason and note about a
    pod, by namespace and name. changed: `missing` has.
    """

    def __init__(
        self,
        *,
        pods: Callable[[], Iterable[PodJson]],
        node: Callable[[], GpuNode | None],
        identify: Identify,
        warn: Callable[[str, str, tuple[str, str] | None], None],
        changed: Callable[[], None],
        proc: Path = kernel_process.PROC,
    ) -> None:
        self._pods = pods
        self._node = node
        self._identify = identify
        self._warn = warn
        self._changed = changed
        self._proc = proc
        self._seen: dict[Container, bool] = {}
        self._looks: collections.Counter[Container] = collections.Counter()
        self.missing: tuple[str, ...] = ()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(SECONDS)

    async def step(self) -> None:
        """Look at the containers that are new, and forget those that are gone."""
        running = dict(_running(self._pods(), self._node()))
        self._seen = {container: arrived for container, arrived in self._seen.items() if container in running}
        new = {container for container in running.keys() - self._seen.keys() if self._looks[container] < LOOKS}
        self._looks = collections.Counter(
            {container: self._looks[container] + (container in new) for container in running}
        )
        arrivals = await asyncio.to_thread(self._look, new) if new else {}
        self._seen |= arrivals
        for without_device in sorted(
            arrivals.keys() - {container for container, arrived in arrivals.items() if arrived}, key=running.__getitem__
        ):
            namespace, name, container = running[without_device]
            note = f"the container {container} has a share of a GPU, and got neither device nor driver from the runtime"
            self._warn(contract.EVENT_NO_DEVICES, note, (namespace, name))
        missing = tuple(
            sorted("/".join(running[container]) for container, arrived in self._seen.items() if not arrived)
        )
        if missing != self.missing:
            self.missing = missing
            self._changed()

    def _look(self, containers: Iterable[Container]) -> Mapping[Container, bool]:
        """Of each container of which a process can be seen, whether one of its processes has a device or a driver."""
        wanted = frozenset(containers)
        arrivals: dict[Container, bool] = {}
        for entry in os.listdir(self._proc):  # noqa: PTH208 - thousands
            who = self._identify(int(entry)) if entry.isdigit() else None
            if isinstance(who, Container) and who in wanted and not arrivals.get(who):
                arrived = has_devices(self._proc / entry)
                if arrived is not None:
                    arrivals[who] = arrived
        return arrivals


def has_devices(directory: Path) -> bool | None:
    """Whether a process, by its directory in /proc, has a GPU's node or a mounted driver; None if that is not seen."""
    try:
        with (directory / "mountinfo").open("rb") as file:
            text = file.read(_MOST_BYTES)
        names = os.listdir(directory / "root/dev")  # noqa: PTH208 - of another root
    except OSError:
        return None
    return bool(_DRIVER.search(text)) or any(map(_GPU.fullmatch, names))


def _running(pods: Iterable[PodJson], node: GpuNode | None) -> Iterator[tuple[Container, tuple[str, str, str]]]:
    """The containers with shares that run, and how they are called."""
    shares = {entry.id: entry.shares for entry in (node.allocations if node is not None else ())}
    for manifest in pods:
        pod_shares = shares.get(pod.annotations_of(manifest).get(contract.ALLOCATION, ""), ())
        names = {name for share in pod_shares for name in share.containers}
        for status in _statuses(manifest) if names else ():
            identity = str(status.get("containerID", "")).rpartition("://")[2]
            if status.get("name") in names and identity and "running" in (status.get("state") or {}):
                yield Container(pod.uid(manifest), identity), (*pod.namespaced_name(manifest), str(status["name"]))


def _statuses(manifest: PodJson) -> Iterator[Mapping[str, Any]]:
    status = manifest.get("status") or {}
    for kind in ("containerStatuses", "initContainerStatuses"):
        yield from status.get(kind) or ()
