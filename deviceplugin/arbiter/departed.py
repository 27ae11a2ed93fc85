"""Departed shares: pods that are gone from the GPUNode while their processes still hold GPU memory.

`kubectl delete --force` removes a pod, and so its share, at once. Its processes run until the kubelet has killed them,
so the next share on that GPU would find less memory than it was promised. The new share waits here until all of its
memory is free, but not for long: the library stops waiting for an answer after twenty seconds. Memory of processes
without the library is unknown, and not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from deviceplugin.arbiter.client_connection import ShareLookup
from deviceplugin.arbiter.ledgers.share_ledgers import ShareLedgers, ShareUse
from deviceplugin.arbiter.tenant import Tenant, find_allocation
from deviceplugin.host.kernel_process import Container
from gpushare import ledger, quantity
from gpushare.gpunode import GpuNode
from gpushare.refusal import Refusal

WAIT_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.1


class DepartedShares:
    """A share lookup that answers once the share's memory is free.

    node: returns the GPUNode, or None if unknown. gpu_bytes: returns a GPU's total memory by UUID, or 0 if unknown.
    """

    def __init__(
        self,
        lookup: ShareLookup,
        ledgers: ShareLedgers,
        *,
        node: Callable[[], GpuNode | None],
        gpu_bytes: Callable[[str], int],
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._lookup = lookup
        self._ledgers = ledgers
        self._node = node
        self._gpu_bytes = gpu_bytes
        self._wait_seconds = wait_seconds

    async def tenant(self, container: Container) -> Tenant | Refusal:
        """Return the container's share, or the reason why it has none or its memory is still in use."""
        tenant = await self._lookup.tenant(container)
        if isinstance(tenant, Refusal):
            return tenant
        deadline = asyncio.get_running_loop().time() + self._wait_seconds
        while (problem := self._problem(tenant)) is not None:
            if asyncio.get_running_loop().time() > deadline:
                return Refusal(problem) if problem else tenant
            await asyncio.sleep(POLL_SECONDS)
        return tenant

    def _problem(self, tenant: Tenant) -> str | None:
        node = self._node()
        return None if node is None else departed_holders(tenant, self._ledgers.uses(), node, self._gpu_bytes)


def departed_holders(
    tenant: Tenant, uses: Iterable[ShareUse], node: GpuNode, gpu_bytes: Callable[[str], int]
) -> str | None:
    """Return a sentence that names the deleted pods which hold the share's memory, or None if there are none.

    The sentence is empty if memory is missing and an outdated `node` may be the reason.
    """
    is_old = find_allocation(tenant, node) is None
    departed = [use for use in uses if use.tenant.key != tenant.key and find_allocation(use.tenant, node) is None]
    if not departed and not is_old:
        return None
    for grant in tenant.grants:
        given = sum(
            ledger.held(entry, grant.uuid)[1] for entry in node.allocations if not entry.is_backfill_reservation
        )
        held = {f"{use.tenant.namespace}/{use.tenant.pod}": _held(use, grant.uuid) for use in departed}
        total, mine = gpu_bytes(grant.uuid), grant.memory_bytes if is_old else 0
        if total and given + mine + sum(held.values()) > total:
            names = ", ".join(name for name, bytes_held in held.items() if bytes_held)
            return names and (
                f"processes of {names}, which was deleted, still hold {quantity.format_bytes(sum(held.values()))} of "
                f"{grant.uuid}, so this share's memory is not free yet: restart the container once they have ended"
            )
    return None


def _held(use: ShareUse, uuid: str) -> int:
    amounts = zip(use.tenant.grants, use.used_bytes, use.overhead_bytes, strict=True)
    return sum(used + overhead for grant, used, overhead in amounts if grant.uuid == uuid)
