"""Sets the driver's memory limits for shares, reads them back, and clears those of ended shares.

A share starts only if its limits read back: the pod's when the kubelet announces a container, the container's before
the arbiter welcomes its first process. Each wait is bounded, and a failure refuses the start. Nothing has to be stored:
cgroups, allocations and limits are all read again, so the next agent continues from what it finds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.hardware import nvml_limits
from deviceplugin.hardware.nvml import Driver
from deviceplugin.hardware.nvml_call import NvmlError
from deviceplugin.host import cgroups
from deviceplugin.host.kernel_process import Container
from deviceplugin.walls import plan
from deviceplugin.walls.plan import Place, PodCgroup, Wall, WallInputs, WallState
from gpushare import contract, pod
from gpushare.allocation import Allocation
from gpushare.gpunode import Gpu, GpuNode, Resize
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

SECONDS: Final = 5.0  # between two rounds
WAIT_SECONDS: Final = 3.0  # for the driver, before a start is refused: the library waits twenty seconds for an answer
PORTION: Final = 64  # limits per call, so that other calls of the driver do not wait for all of them
NOT_IN_FORCE: Final = "the driver's memory limit is not in force"


@dataclasses.dataclass(eq=False)
class MemoryWalls:
    """The walls of this node's shares. For a running event loop.

    root: the host's cgroup v2. gpus: the GPUs by the driver. node, pods: as last seen. context_bytes, running: as in
    `WallInputs`. warn: sends an Event with this reason and note about the GPUNode and a pod. changed: called when the
    GPUNode's resizes may have changed.
    """

    driver: Driver
    _: dataclasses.KW_ONLY
    root: Path
    gpus: Callable[[], Collection[Gpu]]
    node: Callable[[], GpuNode | None]
    pods: Callable[[], Iterable[PodJson]]
    context_bytes: Callable[[str], int]
    running: Callable[[], Mapping[str, int]]
    warn: Callable[[str, str, tuple[str, str] | None], None] = lambda *_: None
    changed: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._there: dict[str, PodCgroup] = {}  # by pod UID, as last seen
        self._states: dict[Place, WallState] = {}
        self._reported: set[tuple[str, str, str]] = set()  # namespace, pod and problem, while it lasts
        self._holds_back = False  # whether a resize waits for memory that the driver still counts

    @property
    def states(self) -> Collection[WallState]:
        return tuple(self._states.values())

    def is_needed(self) -> bool:
        """Whether the driver keeps limits on a GPU of this node."""
        return bool(self._inputs(self.node()).gpus)

    async def cover(self, pod_uid: str) -> str:
        """Set the limits of a pod whose containers are about to start. Return why that failed, or ""."""
        node, manifest = self.node(), next((known for known in self.pods() if pod.uid(known) == pod_uid), None)
        inputs = self._inputs(node)
        if not inputs.gpus:
            return ""
        if node is None or manifest is None:
            return f"{NOT_IN_FORCE}: the pod {pod_uid} is not known to the agent yet"
        entry = tenant.allocation_of(manifest, node)
        if not isinstance(entry, Allocation):
            return f"{NOT_IN_FORCE}: {entry.reason}"
        there = await self._find(pod_uid)
        wanted = plan.walls(node, [manifest], {pod_uid: there or PodCgroup(self.root)}, inputs)
        of_pod = [wall for wall in wanted if not wall.container]
        if of_pod and there is None:
            return self._report(of_pod[0], f"the pod {pod_uid} has no cgroup below {self.root}")
        return await self._raise(of_pod)

    async def prove(self, container: Container, tenant: Tenant) -> Refusal | None:
        """Set the limits of a container with a process. Return the refusal for its processes if that failed."""
        node = self.node()
        inputs = self._inputs(node)
        if plan.is_exempt(node, tenant) or not any(grant.uuid in inputs.gpus for grant in tenant.grants):
            return None
        there = await self._find(container.pod_uid) or PodCgroup(self.root)
        directory = there.containers.get(container.container_id)
        wanted = list(plan.of_container(tenant, directory or self.root, inputs))
        if directory is None:
            problem = f"the container {container.container_id} has no cgroup below {self.root}"
            return Refusal(self._report(wanted[0], problem))
        if node is not None:  # the pod's own limit comes first
            manifests = [known for known in self.pods() if pod.uid(known) == container.pod_uid]
            wanted[:0] = plan.walls(node, manifests, {container.pod_uid: PodCgroup(there.directory)}, inputs)
        problem = await self._raise(wanted)
        return Refusal(problem) if problem else None

    def rises(self, node: GpuNode) -> bool:
        """Whether a limit is to be raised before the arbiter applies this GPUNode."""
        return bool(self._higher(node))

    async def rise(self, node: GpuNode) -> None:
        """Raise the driver's limits before the library's, so that the driver refuses nothing the library allows."""
        if higher := self._higher(node):
            await self._raise(higher)

    async def confirm(self, node: GpuNode, resizes: tuple[Resize, ...]) -> tuple[Resize, ...]:
        """Lower the driver's limits after the library's, and hold back resizes whose memory the driver still counts.

        A program without the library may hold memory of which the arbiter knows nothing.
        """
        inputs = self._inputs(node)
        lowered = plan.lowered(node, resizes, inputs)
        self._holds_back = False
        if not lowered:
            return resizes
        pods = {identity: known for known in self.pods() if (identity := _allocation_id(known)) in lowered}
        states = await self._within(self._enforce_pods(node, tuple(pods.values()), inputs))
        confirmed = plan.confirmed(
            resizes, lowered, {key: pod.namespaced_name(known) for key, known in pods.items()}, states
        )
        self._holds_back = confirmed != resizes
        return confirmed

    async def run(self) -> None:
        while True:
            try:
                await self.step()
            except Exception:
                logger.exception("Could not check the driver's memory limits")
            await asyncio.sleep(SECONDS)

    async def step(self) -> None:
        """Set every limit that is not as it should be, and clear those of ended shares."""
        node = self.node()
        inputs = self._inputs(node)
        pods = {pod.uid(known): known for known in self.pods() if _allocation_id(known)}
        if node is None or not inputs.gpus:
            return
        self._there = await asyncio.to_thread(_scan, self.root, frozenset(pods))
        states = await self._enforce_pods(node, tuple(pods.values()), inputs, scan=False)
        current = {(state.wall.namespace, state.wall.pod, state.problem) for state in states}
        self._reported &= current
        for state in states:
            if state.problem:
                self._report(state.wall, state.problem)
        wanted = {state.wall.place for state in states}
        without_share = (
            self._there[uid] for uid, known in pods.items() if uid in self._there and not _has_share(known, node)
        )
        ended = {
            (gpu, directory)
            for there in without_share
            for directory in (there.directory, *there.containers.values())
            for gpu in inputs.gpus
        }
        ended |= self._states.keys() - wanted
        kept = await self.driver.ask(clear, tuple(sorted(ended))) if ended else frozenset[Place]()
        self._states = {place: state for place, state in self._states.items() if place in wanted or place in kept}
        if self._holds_back:
            self.changed()

    def _inputs(self, node: GpuNode | None) -> WallInputs:
        return WallInputs(plan.able(node, self.gpus()), self.context_bytes, self.running())

    def _higher(self, node: GpuNode) -> list[Wall]:
        """Return the walls that are higher by this GPUNode than they are now."""
        if not self._states:
            return []
        wanted = plan.walls(node, self.pods(), self._there, self._inputs(node))
        known = self._states
        return [wall for wall in wanted if wall.place in known and wall.hard_bytes > known[wall.place].wall.hard_bytes]

    async def _find(self, pod_uid: str) -> PodCgroup | None:
        """Return a pod's cgroups, or None if it has none."""
        found = await asyncio.to_thread(_scan, self.root, frozenset({pod_uid}), self._there.get(pod_uid))
        self._there |= found
        return found.get(pod_uid)

    async def _enforce_pods(
        self, node: GpuNode, pods: Sequence[PodJson], inputs: WallInputs, *, scan: bool = True
    ) -> list[WallState]:
        if scan:
            self._there |= await asyncio.to_thread(_scan, self.root, frozenset(map(pod.uid, pods)))
        return await self._enforce(list(plan.walls(node, pods, self._there, inputs)))

    async def _enforce(self, wanted: Sequence[Wall]) -> list[WallState]:
        states: list[WallState] = []
        for first in range(0, len(wanted), PORTION):
            states += await self.driver.ask(enforce, wanted[first : first + PORTION])
        self._states |= {state.wall.place: state for state in states}
        return states

    async def _raise(self, wanted: Sequence[Wall]) -> str:
        """Set these limits, within a bounded time. Return why one of them is not in force, or ""."""
        states = await self._within(self._enforce(wanted))
        if states is None:
            return self._report(wanted[0], f"the driver has not answered for {WAIT_SECONDS:g} s")
        for state in states:
            if state.problem:
                return self._report(state.wall, state.problem)
        return "" if len(states) == len(wanted) else f"{NOT_IN_FORCE}: its cgroup has just disappeared"

    async def _within(self, setting: Coroutine[Any, Any, list[WallState]]) -> list[WallState] | None:
        """Wait for the driver for a bounded time; None if it has not answered by then."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await setting
        except TimeoutError:
            return None

    def _report(self, wall: Wall, problem: str) -> str:
        """Log a problem and send an Event, once while it lasts. Return it as a sentence."""
        sentence, key = f"{NOT_IN_FORCE}: {problem}", (wall.namespace, wall.pod, problem)
        if key not in self._reported:
            self._reported.add(key)
            extra = {"pod": {"namespace": wall.namespace, "name": wall.pod}, "gpu": wall.gpu, "err": problem}
            logger.error("The driver's memory limit is not in force", extra=extra)
            self.warn(contract.EVENT_NOT_ENFORCED, sentence, (wall.namespace, wall.pod))
        return sentence


def enforce(wanted: Sequence[Wall]) -> list[WallState]:
    """Set each limit that differs, and read it back. For the driver's thread. Cgroups that are gone are left out."""
    states = []
    for wall in wanted:
        limits = nvml_limits.MemoryLimits()
        try:
            limits = nvml_limits.read(wall.gpu, wall.cgroup)
            if not plan.is_up(wall, limits):
                nvml_limits.write(wall.gpu, wall.cgroup, hard_bytes=wall.hard_bytes)
                limits = nvml_limits.read(wall.gpu, wall.cgroup)
            problem = plan.difference(wall, limits)
        except NvmlError as error:
            problem = str(error)
        if not problem or wall.cgroup.exists():
            states.append(WallState(wall, limits, problem))
    return states


def clear(places: Sequence[Place]) -> frozenset[Place]:
    """Clear the limits of cgroups without processes. Return those that stay. For the driver's thread.

    The processes of a pod that was deleted by force outlive its share. They keep their limits.
    """
    kept = set()
    for gpu, cgroup in places:
        try:
            if cgroups.is_populated(cgroup):
                kept.add((gpu, cgroup))
            elif cgroup.exists() and not plan.is_clear(nvml_limits.read(gpu, cgroup)):
                nvml_limits.write(gpu, cgroup, hard_bytes=nvml_limits.NO_LIMIT)
                logger.info(
                    "Cleared the driver's memory limit of an ended share", extra={"gpu": gpu, "cgroup": str(cgroup)}
                )
        except NvmlError as error:
            if cgroup.exists():
                kept.add((gpu, cgroup))
                logger.warning("Could not clear the driver's memory limit of an ended share", extra={"err": str(error)})
    return frozenset(kept)


def _scan(root: Path, uids: Collection[str], known: PodCgroup | None = None) -> dict[str, PodCgroup]:
    """Return the cgroups of these pods. known: the pod's, as last seen, which spares the search."""
    if known is not None and known.directory.exists():
        pods: Mapping[str, Path] = dict.fromkeys(uids, known.directory)
    else:
        pods = cgroups.pods(root)
    return {uid: PodCgroup(pods[uid], cgroups.containers(pods[uid])) for uid in uids if uid in pods}


def _allocation_id(manifest: PodJson) -> str:
    return str(pod.annotations_of(manifest).get(contract.ALLOCATION, ""))


def _has_share(manifest: PodJson, node: GpuNode) -> bool:
    return isinstance(tenant.allocation_of(manifest, node), Allocation)
