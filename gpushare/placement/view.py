"""NodeView: a GpuNode with its use worked out once, as placement looks at it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpushare import contract, ledger
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class NodeView:
    """A node as it is now; make a new one when the node changes."""

    node: GpuNode
    used: Mapping[str, ledger.Use]
    free_percent: int  # of all its GPUs together, as free_bytes; less than nothing where it is over-committed
    free_bytes: int

    @classmethod
    def of(cls, node: GpuNode) -> NodeView:
        """The view of a node; one whose agent says that containers would get no GPU has none to give."""
        devices = node.condition(contract.CONDITION_DEVICES_INJECTED)
        if devices is not None and devices.reason == contract.REASON_NOTHING_INJECTS:
            node = node.without_health(devices.message)
        used = ledger.use(node)
        cards = [(card, used[card.uuid]) for card in node.gpus]
        return cls(
            node,
            used,
            sum(100 - use.request_percent for _, use in cards),
            sum(card.memory_bytes - use.memory_bytes for card, use in cards),
        )

    def cards(self) -> list[tuple[Gpu, ledger.Use]]:
        """Each GPU with what is used of it."""
        return [(card, self.used[card.uuid]) for card in self.node.gpus]
