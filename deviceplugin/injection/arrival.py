"""Checks once per share container whether its processes have devices.

A runtime that ignores a request for devices reports no error; the program just finds no GPU. So the agent checks the
result. A container's root and /dev belong to its tenant, who may put any number of files there, or a file system that
never answers. The agent therefore looks up fixed names, lists nothing, and works in one thread per container with a
timeout. The check can prove only that devices are missing.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from gpushare import contract, pod
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
MAX_CHECKS: Final = 12  # per container without a visible process, such as one in a virtual machine
CHECK_SECONDS: Final = 5.0  # per container: its file systems may not answer
MAX_STUCK: Final = 8  # blocked threads; beyond this, containers stay unchecked
MAX_PROCESSES: Final = 16  # per container
_MAX_BYTES: Final = 1 << 20
_DRIVER: Final = re.compile(rb" \S*/(?:libcuda\.so|libnvidia-ml\.so)[^/ ]* ")
# All minor numbers of the driver. dxg is the device of Windows Subsystem for Linux.
_GPU_NODES: Final = ("dxg", *(f"nvidia{minor}" for minor in range(254)))


@dataclasses.dataclass(eq=False)
class Arrivals:
    """Checks containers until cancelled. missing: containers that run without devices, as `namespace/pod/container`.

    pods: the node's pods. node: the GPUNode; None while unknown. warn: sends an Event with this reason and note about a
    pod, by namespace and name. changed: called when `missing` changes.
    """

    _: dataclasses.KW_ONLY
    pods: Callable[[], Iterable[PodJson]]
    node: Callable[[], GpuNode | None]
    identify: Identify
    warn: Callable[[str, str, tuple[str, str] | None], None]
    changed: Callable[[], None]
    proc: Path = kernel_process.PROC

    def __post_init__(self) -> None:
        self._seen: dict[Container, bool] = {}
        self._checks: collections.Counter[Container] = collections.Counter()
        self._stuck = 0
        self.missing: tuple[str, ...] = ()

    async def run(self) -> None:
        while True:
            await self.step()
            await asyncio.sleep(POLL_SECONDS)

    async def step(self) -> None:
        """Check new containers, and forget those that are gone."""
        running = dict(_running(self.pods(), self.node()))
        self._seen = {container: arrived for container, arrived in self._seen.items() if container in running}
        new = {container for container in running.keys() - self._seen.keys() if self._checks[container] < MAX_CHECKS}
        self._checks = collections.Counter({key: self._checks[key] + (key in new) for key in running})
        arrivals = await self._check(new) if new else {}
        self._seen |= arrivals
        for namespace, name, without in sorted(running[key] for key, arrived in arrivals.items() if not arrived):
            got = "neither a device nor a driver from the runtime"
            note = f"the container {without} has a share of a GPU but got {got}"
            self.warn(contract.EVENT_NO_DEVICES, note, (namespace, name))
        missing = tuple(sorted("/".join(running[key]) for key, arrived in self._seen.items() if not arrived))
        if missing != self.missing:
            self.missing = missing
            self.changed()

    async def _check(self, containers: set[Container]) -> Mapping[Container, bool]:
        """Return, for each container with a visible process, whether a process has a device or a driver."""
        processes = await asyncio.to_thread(self._processes, containers)
        arrivals = {container: await self._check_with_timeout(container, at) for container, at in processes.items()}
        return {container: arrived for container, arrived in arrivals.items() if arrived is not None}

    def _processes(self, wanted: set[Container]) -> Mapping[Container, list[Path]]:
        processes: collections.defaultdict[Container, list[Path]] = collections.defaultdict(list)
        for entry in os.listdir(self.proc):  # noqa: PTH208 - thousands
            who = self.identify(int(entry)) if entry.isdigit() else None
            if isinstance(who, Container) and who in wanted and len(processes[who]) < MAX_PROCESSES:
                processes[who].append(self.proc / entry)
        return processes

    async def _check_with_timeout(self, container: Container, directories: Iterable[Path]) -> bool | None:
        """Whether one of these processes has a device or a driver; None if unknown or after CHECK_SECONDS.

        A thread that does not finish is abandoned, and its container is not checked again.
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
            arrived = None
            for directory in directories:
                here = has_devices(directory)
                arrived = arrived if here is None else here
                if arrived:
                    break
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(end, arrived)

        self._stuck += 1
        # A daemon thread, so that a tenant's file system cannot block the agent's exit.
        threading.Thread(target=check, daemon=True, name=f"devices-{container.container_id[:12]}").start()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await answer
        except TimeoutError:
            self._checks[container] = MAX_CHECKS
            logger.warning("A container's file system does not answer", extra={"container": container.container_id})
            return None


def has_devices(directory: Path) -> bool | None:
    """Whether a process, given by its /proc directory, has a GPU device node or a mounted driver; None if unknown."""
    try:
        with (directory / "mountinfo").open("rb") as file:
            if _DRIVER.search(file.read(_MAX_BYTES)):
                return True
        # Do not follow a symbolic link: it would resolve in this process's own root.
        dev = os.open(directory / "root/dev", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        for name in _GPU_NODES:
            with contextlib.suppress(FileNotFoundError):
                os.stat(name, dir_fd=dev, follow_symlinks=False)
                return True
    except OSError:
        return None
    finally:
        os.close(dev)
    return False


def _running(pods: Iterable[PodJson], node: GpuNode | None) -> Iterator[tuple[Container, tuple[str, str, str]]]:
    """Yield the running containers with shares, each with its namespace, pod and name."""
    shares = {entry.id: entry.shares for entry in (node.allocations if node is not None else ())}
    for manifest in pods:
        pod_shares = shares.get(pod.annotations_of(manifest).get(contract.ALLOCATION, ""), ())
        names = {name for share in pod_shares for name in share.containers}
        status_of_pod = (manifest.get("status") or {}) if names else {}
        kinds = (status_of_pod.get(kind) or () for kind in ("containerStatuses", "initContainerStatuses"))
        for status in itertools.chain.from_iterable(kinds):
            identity = str(status.get("containerID", "")).rpartition("://")[2]
            if status.get("name") in names and identity and "running" in (status.get("state") or {}):
                yield Container(pod.uid(manifest), identity), (*pod.namespaced_name(manifest), str(status["name"]))
