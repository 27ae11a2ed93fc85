"""Keeps the status of this node's GPUNode true to the GPUs; never touches its spec, which is others' to write.

It writes only what differs from what is there, and never on a timer: a thousand nodes that say nothing new must cost
the API server nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from deviceplugin.hardware import inventory
from deviceplugin.offer import Observable, Offer
from gpushare import codec, contract
from gpushare.cluster import api_client, api_errors, informer, object_store, repeating
from gpushare.gpunode import Condition, GpuNode, Resize

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """What there is to say beside the GPUs: the configuration in force by name, and how it is with it."""

    config: str = ""
    conditions: tuple[Condition, ...] = ()


class GpuNodeStatus:
    """The writer of one GPUNode's status, and a live copy of that GPUNode.

    resizes: asked, right before it is written, what is to be said of shares that are to shrink on this GPUNode.
    audited: asked likewise, the conditions that the audit has to say; none before the first. injected: likewise, how
    containers get devices, and who is kept from them.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        *,
        node_name: str,
        offer: Offer,
        statement: Observable[Statement],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._name = node_name
        self._offer = offer
        self._statement = statement
        self._writing = asyncio.Lock()
        self._informed = False
        self._wall_clock = wall_clock
        self._document: dict[str, Any] | None = None
        self._wake = asyncio.Event()
        self._accepted: tuple[Any, Any] | None = None  # what was sent last, and what the API server made of it
        self.informer = informer.Informer(api, contract.GPUNODE_PATH, field_selector=f"metadata.name={node_name}")
        self.informer.subscribe(self._changed)
        self.written = False  # whether the status was once known to be true
        self.audited: Callable[[], tuple[Condition, ...]] = tuple
        self.injected: Callable[[], tuple[Condition, ...]] = tuple
        self.resizes: Callable[[GpuNode], Awaitable[tuple[Resize, ...]]] = _as_it_was

    @property
    def node(self) -> GpuNode | None:
        """The GPUNode as last seen; None while there is none."""
        return codec.read(self._document) if self._document is not None else None

    @property
    def reference(self) -> dict[str, str]:
        """What an Event about the GPUNode names."""
        uid = (self._document or {}).get("metadata", {}).get("uid", "")
        found = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "name": self._name, "uid": uid}
        return {key: value for key, value in found.items() if value}

    def look(self) -> None:
        """There may be something new to say."""
        self._wake.set()

    async def refreshed(self) -> GpuNode | None:
        """The GPUNode as it is now, asked of the API server."""
        try:
            return codec.read(await self._api.get(f"{contract.GPUNODE_PATH}/{self._name}"))
        except api_errors.NotFound:
            return None

    async def run(self, informed: asyncio.Event) -> None:
        """Write whenever something changed, from when the offer is `informed`, until cancelled."""
        await informed.wait()
        self._informed = True
        followers = [asyncio.create_task(self._follow(one)) for one in (self._offer, self._statement)]
        try:
            await repeating.whenever(self._wake, self.step, trouble="Could not write the GPUNode", logger=logger)
        finally:
            for one in followers:
                one.cancel()

    async def settled(self) -> GpuNode:
        """The GPUNode, no older than what the offer says now. Raises ClusterError.

        A share can only be written on the state that its writer has read. So what this does not show on a GPU that the
        offer says takes nothing new, nobody will put there any more.
        """
        if not self._informed:
            raise api_errors.ClusterError(f"the GPUNode {self._name} is not known yet")
        await self.step()
        node = self.node
        if node is None:
            raise api_errors.ClusterError(f"the GPUNode {self._name} was deleted while its status was written")
        return node

    async def step(self) -> None:
        """Make the GPUNode if there is none, and write its status if that says something else."""
        async with self._writing:
            await self._step()

    async def _step(self) -> None:
        while True:
            if self._document is None:
                self._document = await self._create()
            document = self._document
            node = codec.read(document)
            resizes = await self.resizes(node)
            if document is self._document:
                break
        for problem in node.problems:
            logger.warning("Something in the GPUNode makes no sense", extra={"err": problem})
        now = codec.format_time(self._wall_clock())
        said = self._statement.value
        # Until the first audit, what the last agent said of its own stands.
        kept = (one for one in node.conditions if one.type == contract.CONDITION_LIMITS_IN_FORCE)
        more = (*said.conditions, *self.injected(), *(self.audited() or kept))
        wanted = codec.to_status(
            inventory.status(node, self._offer.gpus, config=said.config, now=now, more=more, resizes=resizes)
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
            self._take(await self._api.get(f"{contract.GPUNODE_PATH}/{self._name}"), instead_of=document)
            raise
        self._take(answer, instead_of=document)
        self._accepted = (wanted, answer.get("status"))
        self.written = True
        logger.info("Wrote the GPUNode's status", extra={"node": self._name, "gpus": len(self._offer.gpus)})

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

    async def _follow(self, followed: Observable[Any]) -> None:
        async for _ in followed.follow():
            self._wake.set()

    def _changed(self, change: object_store.Delta) -> None:
        if change.new is None:
            self._document = None
        else:
            self._take(change.new, instead_of=self._document if self.informer.went_back else None)
        self._wake.set()

    def _take(self, document: dict[str, Any], *, instead_of: dict[str, Any] | None) -> None:
        # What we have just written ourselves is newer than what was on its way to us then; or the other way round. What
        # was asked for when we had what we have is newer whatever its version: etcd may have been restored.
        if instead_of is self._document or not _is_older(document, self._document):
            self._document = document


async def _as_it_was(node: GpuNode) -> tuple[Resize, ...]:
    return node.resizes


def _is_older(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    """Whether `one` is an earlier state of the same object than `other`; resource versions are numbers that grow."""
    if other is None or one["metadata"].get("uid") != other["metadata"].get("uid"):
        return False
    try:
        return int(one["metadata"]["resourceVersion"]) < int(other["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        return False
