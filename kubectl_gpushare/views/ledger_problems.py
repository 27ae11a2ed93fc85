"""The problems of the ledger, as sentences; every view shows them prominently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpushare import ledger
from gpushare.gpunode import GpuNode
from kubectl_gpushare.views.gpu_summary import GpuSummary


def find(nodes: Iterable[GpuNode], gpus: Iterable[GpuSummary]) -> list[str]:
    """Return sentences about the nodes; `gpus`: those of their GPUs that are shown."""
    # The ledger's rules are checked only for suspicious nodes: there may be thousands.
    suspects = {gpu.node for gpu in gpus if gpu.gone or gpu.over_committed}
    return [sentence for node in nodes for sentence in _node(node, suspected=node.name in suspects)]


def for_gpu(node: GpuNode, gpu: GpuSummary) -> list[str]:
    """Return sentences about one GPU of a node, and those that name no GPU."""
    others = ledger.use(node).keys() - {gpu.gpu.uuid}
    return [sentence for sentence in _node(node) if not any(uuid in sentence for uuid in others)]


def _node(node: GpuNode, *, suspected: bool = True) -> Sequence[str]:
    return (*node.problems, *(ledger.violations(node) if suspected else ()))
