"""Finds out who is using a GPU. If a source does not answer, the GPU counts as in use."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.arbiter.socket_server import Identify
from deviceplugin.hardware import nvml_call
from deviceplugin.hardware.nvml import Driver
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from deviceplugin.state import pod_resources
from deviceplugin.state.advertisement import COUNTERS
from gpushare import pod
from gpushare.allocation import Allocation
from gpushare.modes import device_resources
from gpushare.modes.hardware_gpu import HardwareGpu
from gpushare.pod import PodJson

# The kubelet lists a device only once the pod is admitted, shortly after Allocate.
JUST_GIVEN_SECONDS: Final = 30.0


class GpuUsers:
    """The users of this node's GPUs, from the kubelet, the driver and the ledger.

    held: the devices of containers in the kubelet's last answer. problem: why `held` is out of date, or "".
    pods: returns the pods of this node; checkpoint: the kubelet's checkpoint file, which it reads at its own start.
    own_pids: returns the PIDs of the MPS daemons, blocking. They and their children do not count as users.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        pod_resources_socket: Path,
        pods: Callable[[], Iterable[PodJson]],
        proc: Path,
        identify: Identify,
        own_pids: Callable[[], frozenset[int]],
        checkpoint: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._socket = pod_resources_socket
        self._checkpoint = checkpoint
        self._pods = pods
        self._own_pids = own_pids
        self._identify = identify
        self._proc, self._clock = proc, clock
        self._by_pod: Mapping[str, Mapping[str, frozenset[str]]] = {}
        self._just_given: dict[tuple[str, str], float] = {}
        self.held: tuple[pod_resources.ContainerDevices, ...] = ()
        self.problem = "the kubelet has not answered yet"

    def record_allocation(self, resource: str, device_ids: Iterable[str]) -> None:
        """Record devices that a container was just given, which the kubelet does not list yet."""
        now = self._clock()
        self._just_given |= dict.fromkeys(((resource, identity) for identity in device_ids), now)

    @property
    def allocated_ids(self) -> dict[str, set[str]]:
        """The device IDs of containers, by resource: from the kubelet, its checkpoint, and recent allocations."""
        since = self._clock() - JUST_GIVEN_SECONDS
        self._just_given = {device: at for device, at in self._just_given.items() if at > since}
        device_ids: dict[str, set[str]] = collections.defaultdict(set)
        for container in self.held:
            device_ids[container.resource].update(container.device_ids)
        for resource, device_id in self._just_given:
            device_ids[resource].add(device_id)
        living = {pod.uid(manifest) for manifest in self._pods() if not pod.is_terminal(manifest)}
        for resource, ids in pod_resources.of_pods(self._by_pod, living).items():
            device_ids[resource].update(ids)
        return device_ids

    def has_devices(self) -> bool:
        """Whether a container has a device of a GPU, other than counters."""
        return any(devices.resource not in COUNTERS for devices in self.held)

    def in_use(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs and MIG devices that containers are known to have."""
        of_gpus = (ids for name, ids in self.allocated_ids.items() if name not in COUNTERS)
        return frozenset(device_resources.device_of(device_id) for ids in of_gpus for device_id in ids)

    async def refresh(self) -> str:
        """Update `held` from the kubelet; return why that was not possible, or ""."""
        if self._checkpoint is not None:
            self._by_pod = pod_resources.read_checkpoint(self._checkpoint)
        asked_at = self._clock()
        try:
            self.held = await pod_resources.held(self._socket)
        except pod_resources.PodResourcesError as error:
            self.problem = str(error)
            return self.problem
        self.problem = ""
        # Forget allocations that were made before the query and are listed now. The kubelet frees a device before it
        # allocates it again, so its list is about the same container.
        listed = {(container.resource, identity) for container in self.held for identity in container.device_ids}
        self._just_given = {key: at for key, at in self._just_given.items() if at >= asked_at or key not in listed}
        return ""

    async def users(
        self, gpus: Iterable[HardwareGpu], *, allocations: Iterable[Allocation], unknown: Mapping[str, str]
    ) -> dict[str, tuple[str, ...]]:
        """Return the users of each of these GPUs in words, by UUID.

        unknown: by UUID, why the shares on a GPU are unknown. Such a GPU counts as in use.
        """
        known = tuple(gpus)
        problem = await self.refresh()
        unanswered = {gpu.uuid: problem for gpu in known if problem}
        running, lost = await self._driver.ask(self._running, [gpu.uuid for gpu in known])
        processes = await asyncio.to_thread(self._users_of, running)
        users = pod_resources.users(
            allocations=allocations,
            held=self.held,
            just_given=[device_id for resource, device_id in self._just_given if resource not in COUNTERS],
            processes=processes,
            gpu_of={uuid: gpu.uuid for gpu in known for uuid in (gpu.uuid, *(made.uuid for made in gpu.mig_devices))},
            ended=["/".join(pod.namespaced_name(manifest)) for manifest in self._pods() if pod.is_terminal(manifest)],
        )
        for uuid, reason in (*unanswered.items(), *lost.items(), *unknown.items()):
            users[uuid] = (*users.get(uuid, ()), f"an unknown user ({reason})")
        return users

    async def processes(self, uuids: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the processes on each of these GPUs in words, by UUID; a GPU whose driver fails has an unknown one."""
        running, lost = await self._driver.ask(self._running, list(uuids))
        found = await asyncio.to_thread(self._users_of, running)
        unknown = {uuid: (f"an unknown process ({reason})",) for uuid, reason in lost.items()}
        return {uuid: tuple(f"{user.name} ({user.pid})" for user in users) for uuid, users in found.items()} | unknown

    def _running(self, uuids: Iterable[str]) -> tuple[dict[str, list[int]], dict[str, str]]:
        """Return the PIDs on each GPU, and why the driver did not answer for the others. Blocking."""
        running, lost = {}, {}
        for uuid in uuids:
            try:
                running[uuid] = [process.pid for process in self._driver.nvml.processes(uuid)]
            except nvml_call.NvmlError as error:
                lost[uuid] = str(error)
        return running, lost

    def _users_of(self, running: Mapping[str, Iterable[int]]) -> dict[str, list[pod_resources.GpuUser]]:
        """Return the users of each GPU. Blocking, so call it in a thread: a process can delay reads in its /proc."""
        own = self._own_pids() if any(running.values()) else frozenset()
        return {
            uuid: [found for pid in pids if (found := self.user(pid, own)) is not None]
            for uuid, pids in running.items()
        }

    def user(self, pid: int, own_pids: frozenset[int]) -> pod_resources.GpuUser | None:
        """Return the process, or None if it has ended or is one of gpushare's MPS processes.

        Our processes are recognized by PID only: a process in a pod could take their name.
        """
        if pid in own_pids or kernel_process.parent(pid, proc=self._proc) in own_pids:
            return None
        try:
            name = (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return None
        container = self._identify(pid)
        if not isinstance(container, Container):
            return pod_resources.GpuUser(pid, name)
        manifest = next((manifest for manifest in self._pods() if pod.uid(manifest) == container.pod_uid), None)
        return pod_resources.GpuUser(pid, name, "/".join(pod.namespaced_name(manifest)) if manifest is not None else "")
