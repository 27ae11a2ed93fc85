"""NodeView: a GpuNode with its use worked out once, as placement looks at it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from gpushare import contract, ledger
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class NodeView:
    """A node as it is now; make a new one when the node changes."""

    node: GpuNode
    used: Mapping[str, ledger.GpuUse]
    free: Mapping[str, int]  # resource -> how much of it is free, on all GPUs together that take shares now

    @classmethod
    def from_node(cls, node: GpuNode) -> NodeView:
        """The view of a node; one whose agent says that no container would start there has no GPU to give."""
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
        """Whether its GPUs have less left, all together, than one of these amounts of our resources.

        Then each GPU has its own reason, and whoever asks is better served with those.
        """
        return any(amount > self.free.get(name, amount) for name, amount in amounts)

    def gpus(self) -> list[tuple[Gpu, ledger.GpuUse]]:
        """Each GPU with what is used of it."""
        return [(gpu, self.used[gpu.uuid]) for gpu in self.node.gpus]
