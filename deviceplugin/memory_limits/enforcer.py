"""Sets the driver's memory limits for shares, reads them back, and clears those of ended shares.

A share starts only if its limits read back: the pod's when the kubelet announces a container, the container's before
the arbiter welcomes its first process. Each wait is bounded, and a failure refuses the start. Nothing has to be stored:
cgroups, allocations and limits are all read again, so the next agent continues from what it finds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.tenant import Holder, Tenant
from deviceplugin.hardware import nvml_limits
from deviceplugin.hardware.nvml import Driver
from deviceplugin.hardware.nvml_call import NvmlError
from deviceplugin.host import cgroups
from deviceplugin.host.kernel_process import Container
from deviceplugin.memory_limits import plan
from deviceplugin.memory_limits.plan import HardLimit, HardLimitState, LimitInputs, Place, PodCgroup
from gpushare import contract, pod
from gpushare.allocation import Allocation, Isolation
from gpushare.gpunode import Gpu, GpuNode, Resize
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

SECONDS: Final = 5.0  # between two rounds
WAIT_SECONDS: Final = 8.0  # for the driver; with ten for the lookup, below the library's twenty
PORTION: Final = 64  # limits per call, so that other calls of the driver do not wait for all of them
NOT_IN_FORCE: Final = "the driver's memory limit is not in force"
CGROUP_REMEDY: Final = "set --cgroup-root to where the host's cgroup v2 is mounted"
DRIVER_REMEDY: Final = "see the kernel's log for NVRM"


class Library(Protocol):
    """The limits that the library keeps, by the arbiter."""

    def apply(self, node: GpuNode) -> Awaitable[tuple[Resize, ...]]: ...

    def refresh(self) -> None: ...


@dataclasses.dataclass(eq=False)
class LimitEnforcer:
    """The driver's memory limits of this node's shares. For a running event loop.

    library: its limits are raised after the driver's, and lowered before. root: the host's cgroup v2. gpus: the GPUs by
    the driver. node: as last seen. pods: likewise, None while unknown. find: asks the API server too for a pod with a
    share. context_bytes, running: as in `LimitInputs`. warn: sends an Event with this reason and note about the GPUNode
    and a pod. changed: called when the GPUNode's resizes may have changed.

    One change at a time: a limit is planned after the scan of the cgroups, from the newest ledger, and nothing comes
    between the plan and the driver. So no older plan overwrites a newer one.
    """

    driver: Driver
    library: Library
    _: dataclasses.KW_ONLY
    root: Path
    gpus: Callable[[], Collection[Gpu]]
    node: Callable[[], GpuNode | None]
    pods: Callable[[], Collection[PodJson] | None]
    find: Callable[[str], Awaitable[Holder | Refusal]]
    context_bytes: Callable[[str], int]
    running: Callable[[], Mapping[str, int]]
    warn: Callable[[str, str, tuple[str, str] | None], None] = lambda *_: None
    changed: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()
        self._there: dict[str, PodCgroup] = {}  # by pod UID, as last seen
        self._states: dict[Place, HardLimitState] = {}
        self._early: dict[str, Holder] = {}  # by pod UID: the API server has shown them, `node` and `pods` not yet
        self._applied: tuple[Resize, ...] = ()  # by the arbiter's last answer
        self._reported: set[tuple[str, str, str]] = set()  # pod UID, GPU and problem
        self._holds_back = False  # whether a resize waits for memory that the driver still counts
        self._rising: asyncio.Task[None] | None = None

    @property
    def states(self) -> Collection[HardLimitState]:
        return tuple(self._states.values())

    def is_needed(self) -> bool:
        """Whether the driver keeps limits on a GPU of this node."""
        return bool(self._able())

    async def cover(self, pod_uid: str) -> str:
        """Set the limits of a pod whose containers are about to start. Return why that failed, or ""."""
        if not self.is_needed():
            return ""
        holder = await self.find(pod_uid)
        if isinstance(holder, Refusal):
            return f"{NOT_IN_FORCE}: {holder.reason}"
        manifest, node = holder
        if not _has_share(manifest, self.node()) or pod_uid not in map(pod.uid, self.pods() or ()):
            self._early[pod_uid] = holder
        wanted = list(plan.hard_limits(node, [manifest], {pod_uid: PodCgroup(self.root)}, self._inputs()))
        if not wanted:
            return ""

        def planned() -> list[HardLimit]:
            return [limit for limit in self._plan({pod_uid}) if not limit.container_id]

        states = await self._set({pod_uid}, planned)
        if states is not None and pod_uid not in self._there:
            return self._report(wanted[0], f"the pod {pod_uid} has no cgroup below {self.root}: {CGROUP_REMEDY}")
        return self._failure(states, planned(), wanted[0])

    async def prove(self, container: Container, holder: Tenant) -> Refusal | None:
        """Set the limits of a container with a process. Return the refusal for its processes if that failed."""
        inputs, uid = self._inputs(), container.pod_uid
        if holder.isolation is Isolation.NONE or not any(grant.uuid in inputs.gpus for grant in holder.grants):
            return None

        def planned() -> list[HardLimit]:
            there = self._there.get(uid, PodCgroup(self.root))
            found = tenant.find(container, pods=self.pods() or (), node=self.node())
            newest = found if isinstance(found, Tenant) else holder
            of_pod = [limit for limit in self._plan({uid}) if not limit.container_id]  # the pod's own limit comes first
            directory = there.containers.get(container.container_id)
            if directory is None:
                return of_pod
            return [*of_pod, *plan.of_container(container, newest, directory, self._inputs(), node=self.node())]

        states = await self._set({uid}, planned)
        (wanted, *_) = plan.of_container(container, holder, self.root, inputs, node=self.node())
        if states is not None and container.container_id not in self._there.get(uid, PodCgroup(self.root)).containers:
            missing = f"the container {container.container_id} has no cgroup below {self.root}: {CGROUP_REMEDY}"
            return Refusal(self._report(wanted, missing))
        problem = self._failure(states, planned(), wanted)
        return Refusal(problem) if problem else None

    async def apply(self, node: GpuNode) -> tuple[Resize, ...]:
        """Apply the GPUNode to the limits of all shares; return the resizes that its status should have."""
        await self._raise()
        return await self._confirm(node, await self.library.apply(node))

    def refresh(self) -> None:
        """Send the current GPUNode to the library, once the driver's limits are high enough for it."""
        if not self._higher():
            self.library.refresh()
        elif self._rising is None or self._rising.done():
            self._rising = asyncio.get_running_loop().create_task(self._raise_first())

    async def _raise_first(self) -> None:
        # A driver that does not answer delays the library once only, for a bounded time.
        try:
            await self._raise()
        finally:
            self.library.refresh()

    async def _raise(self) -> None:
        """Raise the driver's limits before the library's, so that the driver refuses nothing the library allows.

        If the driver does not take or answer it, the report says so, and the next round tries again.
        """
        if higher := self._higher():
            self._failure(await self._set((), self._higher), (), higher[0])

    async def _confirm(self, node: GpuNode, resizes: tuple[Resize, ...]) -> tuple[Resize, ...]:
        """Lower the driver's limits after the library's, and hold back resizes whose memory the driver still counts.

        A program without the library may hold memory of which the arbiter knows nothing.
        """
        self._applied = resizes
        lowered = plan.lowered(node, resizes, self._inputs())
        self._holds_back = False
        if not lowered:
            return resizes
        pods, states = self.pods(), None
        uids = dict.fromkeys(lowered, "")
        if pods is not None:
            held = tenant.pod_uids(pods, node)
            uids = {identity: uid for identity, uid in held.items() if identity in lowered}
            states = await self._set(uids.values(), lambda: self._plan(uids.values()))
        confirmed = plan.confirmed(resizes, lowered, uids, states)
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
        async with self._lock:
            await self._round()
        if self._holds_back:
            self.changed()

    async def _round(self) -> None:
        pods, able = self.pods(), self._able()
        self._states = {place: state for place, state in self._states.items() if place[0] in able}
        if pods is None or self.node() is None or not able:
            return
        allocated = {pod.uid(known) for known in pods if pod.annotations_of(known).get(contract.ALLOCATION)}
        await self._scan_pods(allocated | self._early.keys())
        states = await self._enforce(self._plan)
        for state in states:
            if state.problem:
                self._report(state.wanted, state.problem)
        pods, node = self.pods() or (), self.node()
        for known in pods:
            if _has_share(known, node):
                self._early.pop(pod.uid(known), None)
        self._early = {uid: holder for uid, holder in self._early.items() if uid in self._there}
        alive = {*map(pod.uid, pods), *self._early}
        self._reported = {key for key in self._reported if key[0] in alive}
        without_share = {pod.uid(known) for known in pods if not _has_share(known, node)} - self._early.keys()
        ended = {
            (gpu, directory)
            for uid in without_share & self._there.keys()
            for directory in (self._there[uid].directory, *self._there[uid].containers.values())
            for gpu in able
        }
        wanted = {state.wanted.place for state in states}
        ended |= self._states.keys() - wanted
        kept = await self.driver.ask(clear, tuple(sorted(ended))) if ended else frozenset[Place]()
        self._states = {place: state for place, state in self._states.items() if place in wanted or place in kept}
        self._there = {uid: there for uid, there in self._there.items() if uid in alive}

    def _able(self) -> dict[str, int]:
        return plan.able(self.node(), self.gpus())

    def _inputs(self) -> LimitInputs:
        return LimitInputs(self._able(), self.context_bytes, self.running(), self._applied)

    def _plan(self, uids: Collection[str] | None = None) -> list[HardLimit]:
        """Return the limits by the newest ledger, of these pods or of all, where their cgroups are known."""
        node, inputs = self.node(), self._inputs()
        holders = {
            uid: (manifest, node if node is not None and _has_share(manifest, node) else first)
            for uid, (manifest, first) in self._early.items()
        }
        for known in self.pods() or ():
            if node is not None and _has_share(known, node):
                holders[pod.uid(known)] = known, node
        return [
            limit
            for uid, (manifest, of) in holders.items()
            if uids is None or uid in uids
            for limit in plan.hard_limits(of, [manifest], self._there, inputs)
        ]

    def _higher(self) -> list[HardLimit]:
        """Return the limits that are higher by the ledger than they are now."""
        known = self._states
        wanted = self._plan() if known else []
        return [
            limit
            for limit in wanted
            if limit.place in known and limit.hard_bytes > known[limit.place].wanted.hard_bytes
        ]

    async def _scan_pods(self, uids: Collection[str]) -> None:
        found = await asyncio.to_thread(_scan, self.root, frozenset(uids), dict(self._there))
        self._there = {uid: there for uid, there in self._there.items() if uid not in uids} | found

    async def _set(self, uids: Collection[str], planned: Callable[[], list[HardLimit]]) -> list[HardLimitState] | None:
        """Set the planned limits, once these pods' cgroups are read. None if the driver has not answered in time."""
        if self.driver.silent_seconds >= WAIT_SECONDS:
            return None
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._lock:
                await self._scan_pods(uids)
                return await self._enforce(planned)
        except TimeoutError:
            return None

    async def _enforce(self, planned: Callable[[], list[HardLimit]]) -> list[HardLimitState]:
        """Set the planned limits in portions, and plan again for each. The caller has the lock."""
        states: list[HardLimitState] = []
        done: set[Place] = set()
        while portion := [limit for limit in planned() if limit.place not in done][:PORTION]:
            done |= {limit.place for limit in portion}
            known = await self.driver.ask(enforce, portion)
            self._states |= {state.wanted.place: state for state in known}
            states += known
        return states

    def _failure(self, states: Sequence[HardLimitState] | None, wanted: Iterable[HardLimit], about: HardLimit) -> str:
        """Return why one of the wanted limits is not in force, or "", and report it."""
        if states is None:
            # Without an answer, what the driver returned before counts: a call on another GPU may be slow.
            known = [self._states.get(limit.place) for limit in wanted]
            if known and all(
                state is not None and state.wanted == limit and not state.problem
                for limit, state in zip(wanted, known, strict=True)
            ):
                return ""
            return self._report(about, f"the driver has not answered for {WAIT_SECONDS:g} s: {DRIVER_REMEDY}")
        for state in states:
            if state.problem:
                return self._report(state.wanted, state.problem)
        there = {state.wanted.place for state in states}
        gone = any(limit.place not in there for limit in wanted)
        return f"{NOT_IN_FORCE}: its cgroup has just disappeared" if gone else ""

    def _report(self, limit: HardLimit, problem: str) -> str:
        """Log a problem and send an Event, once for a pod. Return it as a sentence."""
        sentence, key = f"{NOT_IN_FORCE}: {problem}", (limit.pod_uid, limit.gpu, problem)
        if key not in self._reported:
            self._reported.add(key)
            extra = {"pod": {"namespace": limit.namespace, "name": limit.pod}, "gpu": limit.gpu, "err": problem}
            logger.error("The driver's memory limit is not in force", extra=extra)
            self.warn(contract.EVENT_NOT_ENFORCED, sentence, (limit.namespace, limit.pod))
        return sentence


def enforce(wanted: Sequence[HardLimit]) -> list[HardLimitState]:
    """Set each limit that differs, and read it back. For the driver's thread. Cgroups that are gone are left out."""
    states = []
    for limit in wanted:
        limits = nvml_limits.MemoryLimits()
        try:
            limits = nvml_limits.read(limit.gpu, limit.cgroup)
            if not plan.is_in_force(limit, limits):
                nvml_limits.write(limit.gpu, limit.cgroup, hard_bytes=limit.hard_bytes)
                limits = nvml_limits.read(limit.gpu, limit.cgroup)
            problem = plan.difference(limit, limits)
        except NvmlError as error:
            problem = str(error)
        if not problem or limit.cgroup.exists():
            states.append(HardLimitState(limit, limits, problem))
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
                logger.info("Cleared the memory limit of an ended share", extra={"gpu": gpu, "cgroup": str(cgroup)})
        except NvmlError as error:
            if cgroup.exists():
                kept.add((gpu, cgroup))
                logger.warning("Could not clear the driver's memory limit of an ended share", extra={"err": str(error)})
    return frozenset(kept)


def _scan(root: Path, uids: Collection[str], known: Mapping[str, PodCgroup]) -> dict[str, PodCgroup]:
    """Return the cgroups of these pods. known: as last seen, which spares the search while they exist."""
    pods = {uid: known[uid].directory for uid in uids if uid in known and known[uid].directory.exists()}
    if len(pods) < len(uids):
        pods = cgroups.pods(root)
    return {uid: PodCgroup(pods[uid], cgroups.containers(pods[uid])) for uid in uids if uid in pods}


def _has_share(manifest: PodJson, node: GpuNode | None) -> bool:
    return isinstance(tenant.allocation_of(manifest, node), Allocation)
