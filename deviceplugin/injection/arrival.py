"""Whether the devices have come into the containers with shares: seen in their processes, once a container.

A runtime that ignores the devices it is asked for reports no error, and the program only finds no GPU. So the agent
checks the result. A container's root and /dev belong to its tenant, who may put any number of files there, or a file
system that never answers. The agent therefore looks names up and lists nothing, in a thread for each container that it
waits for only so long. What it finds proves nothing but a lack.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.host import kernel_process
from deviceplugin.host.identity import Container
from gpushare import contract, pod
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
MAX_CHECKS: Final = 12  # at a container of which no process is seen, as of one in a virtual machine
CHECK_SECONDS: Final = 5.0  # for one container, whose file systems may not answer
MAX_STUCK: Final = 8  # threads that a file system holds; with so many, containers stay unknown
MAX_PROCESSES: Final = 16  # of one container
_MAX_BYTES: Final = 1 << 20
_DRIVER: Final = re.compile(rb" \S*/(?:libcuda\.so|libnvidia-ml\.so)[^/ ]* ")
# The driver has no more minor numbers for GPUs. dxg: Windows' subsystem for Linux.
_GPU_NODES: Final = ("dxg", *(f"nvidia{minor}" for minor in range(254)))


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
        self._checks: collections.Counter[Container] = collections.Counter()
        self._stuck = 0
        self.missing: tuple[str, ...] = ()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(POLL_SECONDS)

    async def step(self) -> None:
        """Look at the containers that are new, and forget those that are gone."""
        running = dict(_running(self._pods(), self._node()))
        self._seen = {container: arrived for container, arrived in self._seen.items() if container in running}
        new = {container for container in running.keys() - self._seen.keys() if self._checks[container] < MAX_CHECKS}
        self._checks = collections.Counter(
            {container: self._checks[container] + (container in new) for container in running}
        )
        arrivals = await self._check(new) if new else {}
        self._seen |= arrivals
        for without_device in sorted(
            arrivals.keys() - {container for container, arrived in arrivals.items() if arrived}, key=running.__getitem__
        ):
            namespace, name, container = running[without_device]
            note = (
                f"the container {container} has a share of a GPU but got neither a device nor a driver from the runtime"
            )
            self._warn(contract.EVENT_NO_DEVICES, note, (namespace, name))
        missing = tuple(
            sorted("/".join(running[container]) for container, arrived in self._seen.items() if not arrived)
        )
        if missing != self.missing:
            self.missing = missing
            self._changed()

    async def _check(self, containers: set[Container]) -> Mapping[Container, bool]:
        """Of each container with a visible process, whether one of its processes has a device or a driver."""
        arrivals: dict[Container, bool] = {}
        for container, directories in (await asyncio.to_thread(self._processes, containers)).items():
            arrived = await self._check_with_timeout(container, directories)
            if arrived is not None:
                arrivals[container] = arrived
        return arrivals

    def _processes(self, wanted: set[Container]) -> Mapping[Container, list[Path]]:
        processes: collections.defaultdict[Container, list[Path]] = collections.defaultdict(list)
        for entry in os.listdir(self._proc):  # noqa: PTH208 - thousands
            who = self._identify(int(entry)) if entry.isdigit() else None
            if isinstance(who, Container) and who in wanted and len(processes[who]) < MAX_PROCESSES:
                processes[who].append(self._proc / entry)
        return processes

    async def _check_with_timeout(self, container: Container, directories: Iterable[Path]) -> bool | None:
        """Whether one of these processes has a device or a driver; None if unknown, also after `CHECK_SECONDS`.

        The thread of a look that does not end stays behind; its container is not looked at again.
        """
        if self._stuck >= MAX_STUCK:
            return None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool | None] = loop.create_future()

        def end(arrived: bool | None) -> None:
            self._stuck -= 1
            if not answer.done():
                answer.set_result(arrived)

        def check() -> None:
            arrived = _any_has_devices(directories)
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(end, arrived)

        self._stuck += 1
        # A daemon thread: the agent's end must not wait for a tenant's file system.
        threading.Thread(target=check, daemon=True, name=f"devices-{container.container_id[:12]}").start()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await answer
        except TimeoutError:
            self._checks[container] = MAX_CHECKS
            logger.warning("A container's file system does not answer", extra={"container": container.container_id})
            return None


def _any_has_devices(directories: Iterable[Path]) -> bool | None:
    known = None
    for directory in directories:
        arrived = has_devices(directory)
        if arrived:
            return True
        known = known if arrived is None else arrived
    return known


def has_devices(directory: Path) -> bool | None:
    """Whether a process, by its directory in /proc, has a GPU's node or a mounted driver; None if that is not seen."""
    try:
        with (directory / "mountinfo").open("rb") as file:
            if _DRIVER.search(file.read(_MAX_BYTES)):
                return True
        # A symbolic link in its place would lead through this process's own root.
        dev = os.open(directory / "root/dev", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return any(_exists(name, dev) for name in _GPU_NODES)
    except OSError:
        return None
    finally:
        os.close(dev)


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


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
