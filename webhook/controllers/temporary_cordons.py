"""TemporaryCordons: GPUs that one plan keeps cordoned while it is carried out; marked, so that others can end them."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

from gpushare import codec, contract
from gpushare.cluster import api_client, api_errors, compare_and_swap
from gpushare.defragmentation import cordons
from gpushare.defragmentation.cordons import Cordon, CordonChange
from gpushare.gpunode import GpuNode

logger = logging.getLogger(__name__)

RELEASE_SECONDS: Final = 5.0  # also when we are about to end


class TemporaryCordons:
    """The cordons of one plan."""

    def __init__(self, api: api_client.ApiClient, *, wall_clock: Callable[[], float]) -> None:
        self._api = api
        self._wall_clock = wall_clock
        self._by = secrets.token_hex(4)
        self._ours: dict[str, frozenset[str]] = {}  # by node

    async def close(self, wanted: tuple[tuple[str, str], ...], *, seconds: float) -> bool:
        """Cordon these GPUs for at most `seconds`, and uncordon all others of this plan.

        False if another plan keeps one of them cordoned. Raises ClusterError.
        """
        mark = Cordon(self._by, self._wall_clock() + seconds)
        by_node: dict[str, set[str]] = {}
        for name, uuid in wanted:
            by_node.setdefault(name, set()).add(uuid)
        await self._release({name: uuids - by_node.get(name, set()) for name, uuids in self._ours.items()})
        for name, uuids in by_node.items():
            # Noted before the write: it may succeed although its answer is lost.
            self._ours[name] = self._ours.get(name, frozenset()) | uuids
            kept = await self._swap(name, functools.partial(cordons.extend, uuids=frozenset(uuids), mark=mark))
            if not kept:
                return False
        return True

    async def release(self) -> None:
        """Uncordon everything; what cannot be uncordoned now is by whoever plans next, and the log says so."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._release(dict(self._ours))
        except (api_errors.ClusterError, TimeoutError) as error:
            left = {name: sorted(uuids) for name, uuids in self._ours.items() if uuids}
            logger.warning("GPUs stay cordoned until the next plan", extra={"gpus": left, "err": str(error)})

    async def open_left(self, name: str) -> None:
        """Uncordon what plans that did not come to their end have left cordoned on a node. Raises ClusterError."""
        now = self._wall_clock()
        await self._swap(name, lambda node: cordons.release(node, lambda _, mark: mark.until <= now))

    async def _release(self, opened: dict[str, frozenset[str]]) -> None:
        for name, uuids in opened.items():
            if uuids:
                is_ours = functools.partial(self._is_ours, uuids)
                await self._swap(name, functools.partial(cordons.release, may_open=is_ours))
                self._ours[name] -= uuids

    def _is_ours(self, uuids: frozenset[str], uuid: str, mark: Cordon) -> bool:
        return uuid in uuids and mark.by == self._by

    async def _swap(self, name: str, change: Callable[[GpuNode], CordonChange | None]) -> bool:
        """Whether the change could be made; a node that is gone needs none."""
        is_made = True

        def swapped(document: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal is_made
            now = codec.read(document)
            after = change(now)
            is_made = after is not None
            if after is None or (after.cordoned == now.cordoned and not after.marks):
                return None
            labels = dict(document["metadata"].get("labels") or {})
            for key, text in cordons.labels(after.marks).items():
                if text is None:
                    labels.pop(key, None)
                else:
                    labels[key] = text
            metadata = {**document["metadata"], "labels": labels}
            spec = {**(document.get("spec") or {}), "cordoned": sorted(after.cordoned)}
            return {**document, "metadata": metadata, "spec": spec}

        try:
            await compare_and_swap.update(self._api, f"{contract.GPUNODE_PATH}/{name}", swapped)
        except api_errors.NotFound:
            return True
        return is_made
