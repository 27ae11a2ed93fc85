"""NodeView: a GpuNode with its usage computed once, for placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from gpushare import contract, ledger
from gpushare.gpunode import Gpu, GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class NodeView:
    """A node with its usage; make a new one when the node changes."""

    node: GpuNode
    used: Mapping[str, ledger.GpuUse]
    free: Mapping[str, int]  # resource -> free amount, summed over the GPUs that take shares now

    @classmethod
    def from_node(cls, node: GpuNode) -> NodeView:
        """Return the view of a node; if its agent reports that no container can start, all its GPUs are closed."""
        if why := node.closed:
            node = node.as_closed(why)
        used = ledger.use(node)
        usable = [(gpu, used[gpu.uuid]) for gpu in node.gpus if gpu.takes_shares]
        free = {
            contract.RESOURCE_PERCENT: sum(max(0, 100 - use.request_percent) for _, use in usable),
            contract.RESOURCE_MEMORY: sum(max(0, gpu.memory_bytes - use.memory_bytes) for gpu, use in usable),
            contract.RESOURCE_IDLE: len(usable) * contract.IDLE_SHARES_PER_GPU,
        }
        return cls(node, used, free)

    def is_full(self, amounts: Iterable[tuple[str, int]]) -> bool:
        """Whether the node's GPUs together have less left than one of these amounts of gpushare's resources.

        Then each GPU has its own reason, which is more useful than the node's.
        """
        for name, amount in amounts:  # noqa: SIM110 - refusals call this for every node, and a generator is slower
            if amount > self.free.get(name, amount):
                return True
        return False

    def gpus(self) -> list[tuple[Gpu, ledger.GpuUse]]:
        """Return each GPU with its usage."""
        return [(gpu, self.used[gpu.uuid]) for gpu in self.node.gpus]
