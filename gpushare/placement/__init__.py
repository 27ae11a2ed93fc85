"""Placement: choosing node and GPU for a request. Pure: a view of the GPUs and a request → `Placement` or `Refusal`.

`fleet.Fleet` finds the node among thousands, over arrays; `node_by_node` chooses the GPUs on it, and among a few nodes
the node as well. `filters` say which GPUs will do and why the others will not; which of those is best is said by
`policies`, and for the default one by `worth` and `pricing`; `topology` says which of several GPUs belong together,
`together` the same for many nodes at once; `explanation` makes the one sentence of a refusal.
"""

from __future__ import annotations

from gpushare.placement.node_by_node import Placement, fits_anywhere, place
from gpushare.placement.view import NodeView

__all__ = ["NodeView", "Placement", "fits_anywhere", "place"]
