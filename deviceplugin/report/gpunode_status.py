"""Keeps the status of this node's GPUNode true to the GPUs; never touches its spec, which is others' to write.

It writes only what differs from what is there, and never on a timer: a thousand nodes that say nothing new must cost
the API server nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from deviceplugin.hardware import inventory
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.node_state import NodeState
from gpushare import codec, contract
from gpushare.cluster import api_client, api_errors, repeating
from gpushare.gpunode import Condition, GpuNode, Resize

logger = logging.getLogger(__name__)

STOPPED: Final = "the node's agent has stopped, and nothing is placed here until it is back"


class GpuNodeStatus:
    """The writer of one GPUNode's status, of which `gpunode` is the copy; `wake` is set when there may be news.

    state: what the GPUs are, and what is said of them. resizes: asked, right before it is written, what is to be said
    of shares that are to shrink on this GPUNode. audited: asked likewise, the conditions that the audit has to say;
    none before the first that is whole. injected: likewise, how containers get devices, and who is kept from them.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        gpunode: GpuNodeCopy,
        state: NodeState,
        *,
        wake: asyncio.Event,
        resizes: Callable[[GpuNode], Awaitable[tuple[Resize, ...]]],
        audited: Callable[[], tuple[Condition, ...]] = tuple,
        injected: Callable[[], tuple[Condition, ...]] = tuple,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._gpunode = gpunode
        self._name = gpunode.name
        self._state = state
        self._wake = wake
        self._resizes = resizes
        self._audited = audited
        self._injected = injected
        self._wall_clock = wall_clock
        self._stopping = False
        self._writing = asyncio.Lock()
        self._informed = False
        self._accepted: tuple[Any, Any] | None = None  # what was sent last, and what the API server made of it
        self.written = False  # whether the status was once known to be true

    async def run(self, informed: asyncio.Event) -> None:
        """Write whenever something changed, from when the offer is `informed`, until cancelled."""
        await informed.wait()
        self._informed = True
        self._state.gpus.wake(self._wake)
        self._state.unread.wake(self._wake)
        self._state.statement.wake(self._wake)
        self._state.registered.wake(self._wake)
        self._state.hung_up.wake(self._wake)
        await repeating.run_on_wakeup(self._wake, self.step, trouble="Could not write the GPUNode", logger=logger)

    async def settled(self) -> GpuNode:
        """The GPUNode, no older than what the offer says now. Raises ClusterError.

        A share can only be written on the state that its writer has read. So what this does not show on a GPU that the
        offer says takes nothing new, nobody will put there any more.
        """
        if not self._informed:
            raise api_errors.ClusterError(f"the GPUNode {self._name} is not known yet")
        await self.step()
        node = self._gpunode.now()
        if node is None:
            raise api_errors.ClusterError(f"the GPUNode {self._name} was deleted while its status was written")
        return node

    async def stop(self) -> GpuNode:
        """Say that the agent stops, and return the GPUNode, on which nobody places any more. Raises ClusterError."""
        self._stopping = True
        if self._gpunode.document is None:
            raise api_errors.ClusterError(f"there is no GPUNode {self._name}")
        return await self.settled()

    async def step(self) -> None:
        """Make the GPUNode if there is none, and write its status if that says something else."""
        async with self._writing:
            await self._step()

    async def _step(self) -> None:
        while True:
            if self._gpunode.document is None:
                self._gpunode.document = await self._create()
            document = self._gpunode.document
            node = codec.read(document)
            resizes = await self._resizes(node)
            if document is self._gpunode.document:
                break
        for problem in node.problems:
            logger.warning("Something in the GPUNode is invalid", extra={"err": problem})
        now = codec.format_time(self._wall_clock())
        said = self._state.statement.value
        # Until the first whole audit, what the last agent said of its own stands.
        kept = (condition for condition in node.conditions if condition.type == contract.CONDITION_LIMITS_IN_FORCE)
        more = (*said.conditions, *self._injected(), *(self._audited() or kept))
        wanted = codec.to_status(
            inventory.status(
                node,
                self._state.gpus.gpus,
                config=said.config,
                now=now,
                unread=self._state.unread.value,
                hung_up=self._state.hung_up.value,
                stopped=STOPPED if self._is_stopped(node) else "",
                more=more,
                resizes=resizes,
            )
        )
        current = document.get("status")
        if current == wanted or self._accepted == (wanted, current):
            self.written = True
            return
        # Also a merge patch replaces lists as a whole, and these are ours alone.
        body: dict[str, Any] = {"status": wanted}
        if resizes:
            # The placer gives away what is promised here, so it must be an answer to the GPUNode as it is.
            body["metadata"] = {"resourceVersion": node.version}
        try:
            answer = await self._api.patch(f"{contract.GPUNODE_PATH}/{self._name}/status", body)
        except api_errors.Conflict:
            self._gpunode.take(await self._api.get(f"{contract.GPUNODE_PATH}/{self._name}"), instead_of=document)
            raise
        self._gpunode.take(answer, instead_of=document)
        self._accepted = (wanted, answer.get("status"))
        self.written = True
        logger.info("Wrote the GPUNode's status", extra={"node": self._name, "gpus": len(self._state.gpus.gpus)})

    def _is_stopped(self, node: GpuNode) -> bool:
        """The last agent's word stands until the kubelet asks this one: a pod that comes before that fails for good."""
        ready = node.condition(contract.CONDITION_READY)
        was_stopped = ready is not None and ready.reason == contract.REASON_AGENT_STOPPED
        return self._stopping or (
            was_stopped and not self._state.advertised.value.keys() <= self._state.registered.value
        )

    async def _create(self) -> dict[str, Any]:
        owner = await self._api.get(f"/api/v1/nodes/{self._name}")
        body = {
            "apiVersion": contract.API_VERSION,
            "kind": contract.GPUNODE_KIND,
            "metadata": {
                "name": self._name,
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": owner["metadata"]["uid"]}
                ],
            },
        }
        try:
            made = await self._api.create(contract.GPUNODE_PATH, body)
        except api_errors.AlreadyExists:
            return await self._api.get(f"{contract.GPUNODE_PATH}/{self._name}")
        logger.info("Made the GPUNode", extra={"node": self._name})
        return made
