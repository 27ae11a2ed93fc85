"""Waits, before a process gets its share, until other shares no longer hold that memory.

`kubectl delete --force` removes a pod, and so its share, at once. Its processes run until the kubelet has killed them,
so the next share on that GPU would find less memory than it was promised. The same happens when a GPUNode is restored
to a state before memory was lent. Memory of processes without the library is unknown, and not waited for.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from typing import Final

from deviceplugin.arbiter.client_connection import ShareLookup
from deviceplugin.arbiter.share_ledgers import ShareLedgers, ShareUse
from deviceplugin.arbiter.tenant import Tenant, find_allocation
from deviceplugin.host.kernel_process import Container
from gpushare import ledger, quantity
from gpushare.gpunode import GpuNode
from gpushare.refusal import Refusal

WAIT_SECONDS: Final = 15.0  # for memory of departed shares: the library waits twenty seconds for an answer
POLL_SECONDS: Final = 0.1


@dataclasses.dataclass(frozen=True)
class DepartedShares:
    """A share lookup that answers once the share's memory is free of other shares, for a limited time.

    node: returns the GPUNode, or None if unknown. gpu_bytes: returns a GPU's total memory by UUID, or 0 if unknown.
    """

    lookup: ShareLookup
    ledgers: ShareLedgers
    _: dataclasses.KW_ONLY
    node: Callable[[], GpuNode | None]
    gpu_bytes: Callable[[str], int]
    wait_seconds: float = WAIT_SECONDS

    async def tenant(self, container: Container) -> Tenant | Refusal:
        """Return the container's share, or the reason why it has none or its memory is still in use."""
        tenant = await self.lookup.tenant(container)
        if isinstance(tenant, Refusal):
            return tenant
        deadline = asyncio.get_running_loop().time() + self.wait_seconds
        while (node := self.node()) is not None:
            problem = departed_holders(tenant, self.ledgers.uses(), node, self.gpu_bytes)
            if problem is None:
                break
            if asyncio.get_running_loop().time() > deadline:
                return Refusal(problem) if problem else tenant
            await asyncio.sleep(POLL_SECONDS)
        return tenant


def departed_holders(
    tenant: Tenant, uses: Iterable[ShareUse], node: GpuNode, gpu_bytes: Callable[[str], int]
) -> str | None:
    """Name, in a sentence, the deleted pods which hold the share's memory; None if none do, "" if `node` may be old."""
    is_old = find_allocation(tenant, node) is None
    departed = [use for use in uses if use.tenant.key != tenant.key and find_allocation(use.tenant, node) is None]
    on_gpus, own_bytes = node.lent_by_gpu(), node.lent().get((tenant.allocation, tenant.share), 0)
    if not departed and not is_old and not on_gpus:
        return None
    for grant in tenant.grants:
        given = sum(
            ledger.held(entry, grant.uuid)[1] for entry in node.allocations if not entry.is_backfill_reservation
        )
        given += (lent_bytes := on_gpus.get(grant.uuid, 0))
        held = {f"{use.tenant.namespace}/{use.tenant.pod}": _held(use, grant.uuid) for use in departed}
        total, mine = gpu_bytes(grant.uuid), grant.memory_bytes if is_old else 0
        if total and given + mine + sum(held.values()) > total:
            names = ", ".join(name for name, bytes_held in held.items() if bytes_held)
            if not names and lent_bytes > own_bytes and not is_old:
                lent = quantity.format_bytes(lent_bytes - own_bytes)
                return (
                    f"other shares still hold {lent} of {grant.uuid} that they were lent, so this share's memory is "
                    "not free yet: restart the container once they use less"
                )
            return names and (
                f"processes of {names}, which was deleted, still hold {quantity.format_bytes(sum(held.values()))} of "
                f"{grant.uuid}, so this share's memory is not free yet: restart the container once they have ended"
            )
    return None


def _held(use: ShareUse, uuid: str) -> int:
    amounts = zip(use.tenant.grants, use.used_bytes, use.overhead_bytes, strict=True)
    return sum(used + overhead for grant, used, overhead in amounts if grant.uuid == uuid)
