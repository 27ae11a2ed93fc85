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
from deviceplugin.hardware.driver import Driver
from deviceplugin.host import kernel_process
from deviceplugin.host.identity import Container
from deviceplugin.state import gpu_usage, kubelet_checkpoint, pod_resources
from deviceplugin.state.advertisement import COUNTERS
from gpushare import pod
from gpushare.allocation import Allocation
from gpushare.modes.hardware_gpu import HardwareGpu
from gpushare.pod import PodJson

# The kubelet tells of a device that it has given out once the pod is admitted, which is a moment later.
JUST_GIVEN_SECONDS: Final = 30.0
_ENDED: Final = ("Succeeded", "Failed")


class GpuUsers:
    """Knows whom to ask on this node. `held` is what the kubelet has told last.

    pods: of this node, as the informer has them; kept: what the kubelet writes down, by which it starts.
    ours: pids of daemons that we run for the GPUs' users, as MPS's; blocking. With their children they use no GPU.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        pod_resources_socket: Path,
        pods: Callable[[], Iterable[PodJson]],
        proc: Path,
        identify: Identify,
        ours: Callable[[], frozenset[int]],
        kept: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._socket = pod_resources_socket
        self._pods = pods
        self._proc = proc
        self._identify = identify
        self._ours = ours
        self._clock = clock
        self._kept_at = kept
        self._kept: Mapping[str, Mapping[str, frozenset[str]]] = {}
        self._just_given: dict[tuple[str, str], float] = {}
        self.held: tuple[pod_resources.ContainerDevices, ...] = ()
        self.silent = "it was not asked yet"  # why `held` is not what the kubelet says now; empty where it is

    def gave(self, resource: str, device_ids: Iterable[str]) -> None:
        """A container was given these just now."""
        now = self._clock()
        self._just_given |= dict.fromkeys(((resource, identity) for identity in device_ids), now)

    @property
    def allocated_ids(self) -> dict[str, set[str]]:
        """By resource the ids that containers have, as the kubelet told last or starts by; or were given just now."""
        since = self._clock() - JUST_GIVEN_SECONDS
        self._just_given = {device: at for device, at in self._just_given.items() if at > since}
        device_ids: dict[str, set[str]] = collections.defaultdict(set)
        for container in self.held:
            device_ids[container.resource].update(container.device_ids)
        for resource, device_id in self._just_given:
            device_ids[resource].add(device_id)
        living = {pod.uid(manifest) for manifest in self._pods() if not pod.is_terminal(manifest)}
        for resource, ids in kubelet_checkpoint.of_pods(self._kept, living).items():
            device_ids[resource].update(ids)
        return device_ids

    def has_devices(self) -> bool:
        """Whether the kubelet has told of a device of a GPU, and not only of counters, that a container has."""
        return any(devices.resource not in COUNTERS for devices in self.held)

    def in_use(self) -> frozenset[str]:
        """UUIDs of the GPUs and MIG devices that containers have been given, as far as that was told."""
        allocated = self.allocated_ids.items()
        return frozenset(
            gpu_usage.without_replica(device_id) for name, ids in allocated if name not in COUNTERS for device_id in ids
        )

    async def ask_kubelet(self) -> str:
        """Renew `held`; return why that was not possible, or nothing."""
        if self._kept_at is not None:
            self._kept = kubelet_checkpoint.read(self._kept_at)
        asked_at = self._clock()
        try:
            self.held = await pod_resources.held(self._socket)
            self.silent = ""
            self._forget_given(asked_at)
        except pod_resources.PodResourcesError as error:
            self.silent = str(error)
        return self.silent

    def _forget_given(self, asked_at: float) -> None:
        """Forget devices that were given before the kubelet was asked, and that it lists: now its list counts.

        The kubelet frees a device before it gives it to the next container, so the list is about that container.
        """
        listed = {(container.resource, identity) for container in self.held for identity in container.device_ids}
        self._just_given = {
            device: at for device, at in self._just_given.items() if at >= asked_at or device not in listed
        }

    async def users(
        self, gpus: Iterable[HardwareGpu], *, allocations: Iterable[Allocation], unknown: Mapping[str, str]
    ) -> dict[str, tuple[str, ...]]:
        """Who uses each of these GPUs, by UUID.

        unknown: of a GPU whose shares cannot be told, the reason.
        """
        known = tuple(gpus)
        silent = await self.ask_kubelet()
        unanswered = {gpu.uuid: silent for gpu in known if silent}
        running, lost = await self._driver.ask(self._running, [gpu.uuid for gpu in known])
        processes = await asyncio.to_thread(self._users_of, running)
        users = gpu_usage.users(
            allocations=allocations,
            held=self.held,
            just_given=[device_id for resource, device_id in self._just_given if resource not in COUNTERS],
            processes=processes,
            gpu_of={
                uuid: gpu.uuid
                for gpu in known
                for uuid in (gpu.uuid, *(mig_device.uuid for mig_device in gpu.mig_devices))
            },
            ended=[
                "/".join(pod.namespaced_name(manifest))
                for manifest in self._pods()
                if (manifest.get("status") or {}).get("phase") in _ENDED
            ],
        )
        for uuid, reason in (*unanswered.items(), *lost.items(), *unknown.items()):
            users[uuid] = (*users.get(uuid, ()), f"an unknown user ({reason})")
        return users

    def _running(self, uuids: Iterable[str]) -> tuple[dict[str, list[int]], dict[str, str]]:
        """The pids on each GPU, and why there is no answer for the others."""
        running, lost = {}, {}
        for uuid in uuids:
            try:
                running[uuid] = [process.pid for process in self._driver.nvml.processes(uuid)]
            except nvml_call.NvmlError as error:
                lost[uuid] = str(error)
        return running, lost

    def _users_of(self, running: Mapping[str, Iterable[int]]) -> dict[str, list[gpu_usage.GpuUser]]:
        """By GPU the processes on it. Blocking: in a thread of its own, as a process can hold up who asks of it."""
        ours = self._ours() if any(running.values()) else frozenset()
        return {
            uuid: [found for pid in pids if (found := self.user(pid, ours)) is not None]
            for uuid, pids in running.items()
        }

    def user(self, pid: int, ours: frozenset[int]) -> gpu_usage.GpuUser | None:
        """The process, or None if it is over, or one of ours, which a name alone does not make it."""
        if pid in ours or kernel_process.parent(pid, proc=self._proc) in ours:
            return None
        try:
            name = (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return None
        container = self._identify(pid)
        if not isinstance(container, Container):
            return gpu_usage.GpuUser(pid, name)
        manifest = next((manifest for manifest in self._pods() if pod.uid(manifest) == container.pod_uid), None)
        return gpu_usage.GpuUser(pid, name, "/".join(pod.namespaced_name(manifest)) if manifest is not None else "")
