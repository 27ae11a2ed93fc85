"""Writes the status of this node's GPUNode. Never touches the spec, which belongs to the webhook and the placer.

It writes only changes, and never on a timer: a thousand nodes without news must not load the API server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.node_state import NodeState, Unreadable
from gpushare import codec, contract, quantity
from gpushare.cluster import api_client, api_errors, retrying
from gpushare.gpunode import Condition, Gpu, GpuNode, Resize

logger = logging.getLogger(__name__)

RESIZES_SECONDS: Final = 2.0  # for the resizes, which wait for the driver where it keeps limits
STOPPED: Final = "the node's agent has stopped; no pod is placed here until it is back"


class GpuNodeStatus:
    """The writer. written: whether the status was up to date once.

    wake: set when there may be changes. resizes: called right before each write, returns the state of shrinking shares.
    partitions: called likewise for a GPU's UUID and new number of SM partitions, returns the number that it has now.
    audited, injected: called likewise, return the conditions of the audit (none before its first complete run), and
    those about the injection of devices and the denial of unregistered processes.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        gpunode: GpuNodeCopy,
        state: NodeState,
        *,
        wake: asyncio.Event,
        resizes: Callable[[GpuNode], Awaitable[tuple[Resize, ...]]],
        partitions: Callable[[str, int], int] = lambda _, count: count,
        audited: Callable[[], tuple[Condition, ...]] = tuple,
        injected: Callable[[], tuple[Condition, ...]] = tuple,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._gpunode = gpunode
        self._name = gpunode.name
        self._state = state
        self._wake = wake
        self._wall_clock = wall_clock
        self._resizes = resizes
        self._partitions = partitions
        self._audited = audited
        self._injected = injected
        self._stopping = self._informed = False
        self._writing = asyncio.Lock()
        self._resizing: asyncio.Task[tuple[Resize, ...]] | None = None
        self._late: tuple[Resize, ...] | None = None  # the resizes that arrived after a step had stopped waiting
        self._accepted: tuple[Any, Any] | None = None  # the last status sent, and as the API server stored it
        self.written = False

    async def run(self, informed: asyncio.Event) -> None:
        """Write whenever something changed, once `informed` is set, until cancelled."""
        await informed.wait()
        self._informed = True
        state = self._state
        for value in (state.gpus, state.unread, state.config_status, state.registered, state.hung_up):
            value.wake(self._wake)
        await retrying.run_on_wakeup(self._wake, self.step, trouble="Could not write the GPUNode", logger=logger)

    async def settled(self) -> GpuNode:
        """Write the status if needed, and return the GPUNode as stored after it. Raises ClusterError.

        A share can only be written to the version of the GPUNode that its writer has read. So after a GPU was
        published as closed, no share can appear on it that this GPUNode does not show.
        """
        if not self._informed:
            raise api_errors.ClusterError(f"the GPUNode {self._name} is not known yet")
        await self.step()
        node = self._gpunode.now()
        if node is None:
            raise api_errors.ClusterError(f"the GPUNode {self._name} was deleted while its status was written")
        return node

    async def stop(self) -> GpuNode:
        """Report that the agent stops; return the GPUNode, which gets no new shares then. Raises ClusterError."""
        self._stopping = True
        if self._gpunode.document is None:
            raise api_errors.ClusterError(f"there is no GPUNode {self._name}")
        return await self.settled()

    async def step(self) -> None:
        async with self._writing:
            await self._step()

    async def _step(self) -> None:
        while True:
            if self._gpunode.document is None:
                self._gpunode.document = await self._create()
            document = self._gpunode.document
            node = codec.read(document)
            resizes = await self._resizes_of(node)
            if document is self._gpunode.document:
                break
        if resizes is None:
            if (document.get("status") or {}).get("gpus") is None:
                # The placer restores shares as soon as the GPUs are there, and must know by then what is lent.
                logger.info("The GPUNode stays without GPUs until the arbiter answers", extra={"node": self._name})
                return
            resizes = node.resizes  # the GPUs' health cannot wait
        for problem in node.problems:
            logger.warning("The GPUNode is invalid in part", extra={"err": problem})
        config_status = self._state.config_status.value
        # Until the first complete audit, keep the condition that the previous agent wrote.
        kept = (condition for condition in node.conditions if condition.type == contract.CONDITION_LIMITS_IN_FORCE)
        more = (*config_status.conditions, *self._injected(), *(self._audited() or kept))
        gpus = self._gpus(node)
        said = conditions(
            gpus,
            previous=node.conditions,
            now=quantity.format_time(self._wall_clock()),
            unread=self._state.unread.value,
            hung_up=self._state.hung_up.value,
            stopped=STOPPED if self._is_stopped(node) else "",
            more=more,
        )
        config = config_status.config
        must_be_current = _partitions(gpus) != _partitions(node.gpus) or resizes != () or node.resizes != ()
        must_be_current |= any(share.memory_limit_bytes for entry in node.allocations for share in entry.shares)
        node = dataclasses.replace(node, gpus=gpus, config=config, conditions=said, resizes=resizes)
        wanted = codec.to_status(node)
        current = document.get("status")
        if current == wanted or self._accepted == (wanted, current):
            self.written = True
            return
        # A merge patch replaces whole lists, which is right because no one else writes these.
        body: dict[str, Any] = {"status": {"lent": None} | wanted}
        if must_be_current or "resizes" not in (current or {}):
            # The placer gives away memory that is free by these resizes, and shares must fit the GPU's partitions, so
            # both must match the GPUNode's current version.
            body["metadata"] = {"resourceVersion": node.version}
        else:
            # A write that arrives late must not withdraw what was lent since.
            body["status"] = {key: value for key, value in wanted.items() if key not in {"resizes", "lent"}}
        try:
            answer = await self._api.patch(f"{contract.GPUNODE_PATH}/{self._name}/status", body)
        except api_errors.Conflict:
            self._gpunode.update(await self._api.get(f"{contract.GPUNODE_PATH}/{self._name}"), instead_of=document)
            raise
        self._gpunode.update(answer, instead_of=document)
        stored = answer.get("status") or {}
        has_resizes = all(stored.get(key) == wanted.get(key) for key in ("resizes", "lent"))
        self._accepted = (wanted, stored) if has_resizes else None
        self.written = True
        logger.info("Wrote the GPUNode's status", extra={"node": self._name, "gpus": len(self._state.gpus.gpus)})

    def _gpus(self, node: GpuNode) -> tuple[Gpu, ...]:
        """Return the GPUs; a new number of SM partitions may be older than the shares in this GPUNode."""
        before = _partitions(node.gpus)
        return tuple(
            gpu
            if gpu.sm_partitions == before.get(gpu.uuid, 0)
            else dataclasses.replace(gpu, sm_partitions=self._partitions(gpu.uuid, gpu.sm_partitions))
            for gpu in self._state.gpus.gpus
        )

    async def _resizes_of(self, node: GpuNode) -> tuple[Resize, ...] | None:
        """Return the resizes for the status; None if they take long, because a driver hangs. Then `wake` is set."""
        resizing, late, self._late = self._resizing, self._late, None
        if late is not None and not node.gpus:  # they might be late every time
            return late
        if resizing is None:
            resizing = asyncio.ensure_future(self._resizes(node))
            done, _ = await asyncio.wait({resizing}, timeout=RESIZES_SECONDS)
            if done:
                return resizing.result()
            self._resizing = resizing
            resizing.add_done_callback(self._resizes_are_late)
        return None

    def _resizes_are_late(self, resizing: asyncio.Task[tuple[Resize, ...]]) -> None:
        self._resizing = None
        if not resizing.cancelled() and resizing.exception() is not None:
            logger.warning("Could not read the resizes", extra={"err": str(resizing.exception())})
        elif not resizing.cancelled():
            self._late = resizing.result()
        self._wake.set()

    def _is_stopped(self, node: GpuNode) -> bool:
        # Also after a restart, until the kubelet has all plugins again: a pod placed earlier would fail permanently.
        ready = node.condition(contract.CONDITION_READY)
        was_stopped = ready is not None and ready.reason == contract.REASON_AGENT_STOPPED
        return self._stopping or (
            was_stopped and not self._state.advertised.value.keys() <= self._state.registered.value
        )

    async def _create(self) -> dict[str, Any]:
        owner = await self._api.get(f"/api/v1/nodes/{self._name}")
        reference = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": owner["metadata"]["uid"]}
        metadata = {"name": self._name, "ownerReferences": [reference]}
        body = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "metadata": metadata}
        try:
            made = await self._api.create(contract.GPUNODE_PATH, body)
        except api_errors.AlreadyExists:
            return await self._api.get(f"{contract.GPUNODE_PATH}/{self._name}")
        logger.info("Created the GPUNode", extra={"node": self._name})
        return made


def _partitions(gpus: Iterable[Gpu]) -> dict[str, int]:
    return {gpu.uuid: gpu.sm_partitions for gpu in gpus if gpu.sm_partitions}


MAX_CHARACTERS: Final = 32768  # the CRD's limit for a condition's message; some messages list pods


def conditions(
    gpus: Sequence[Gpu],
    *,
    previous: Sequence[Condition],
    now: str,
    unread: Sequence[Unreadable] = (),
    hung_up: str = "",
    stopped: str = "",
    more: Sequence[Condition] = (),
) -> tuple[Condition, ...]:
    """Return the node's condition Ready, and `more`.

    unread: GPUs that are missing from `gpus` because nothing could be read. now: RFC 3339, used only where a status
    changes. hung_up: why the kubelet does not list all devices. stopped: why no pod starts here even if the GPUs are
    healthy.
    """
    unhealthy = [gpu for gpu in gpus if not gpu.healthy]
    healthy_count = len(gpus) - len(unhealthy)
    count = len(gpus) + sum(gpu.index is not None or gpu.bus_id != "" for gpu in unread)
    summary = f"{healthy_count} of {count} GPUs are healthy" if count or not unread else "no GPU can be read"
    reasons = [f"GPU {gpu.index} ({gpu.uuid}): {gpu.health_reason}" for gpu in unhealthy]
    message = "; ".join((summary, *reasons, *map(str, unread)))
    if stopped:
        ready = Condition(contract.CONDITION_READY, "False", contract.REASON_AGENT_STOPPED, stopped)
    elif hung_up:
        ready = Condition(contract.CONDITION_READY, "False", "KubeletHangsUp", f"{hung_up}; {message}")
    elif not gpus and not unread:
        ready = Condition(contract.CONDITION_READY, "False", "NoGpus", message)
    elif not healthy_count:
        ready = Condition(contract.CONDITION_READY, "False", "AllGpusUnhealthy", message)
    else:
        reason = "SomeGpusUnhealthy" if unhealthy or unread else "GpusHealthy"
        ready = Condition(contract.CONDITION_READY, "True", reason, message)
    wanted = (ready, *more)
    since = {(condition.type, condition.status): condition.last_transition for condition in previous}
    return tuple(
        dataclasses.replace(
            condition,
            message=_shortened(condition.message),
            last_transition=since.get((condition.type, condition.status)) or now,
        )
        for condition in wanted
    )


def _shortened(message: str) -> str:
    return message if len(message) <= MAX_CHARACTERS else f"{message[: MAX_CHARACTERS - 1]}…"
