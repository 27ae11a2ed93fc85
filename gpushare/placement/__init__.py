"""Placement: choose node and GPUs for a request. Pure: views of the GPUs and a request → `Placement` or `Refusal`.

`fleet.Fleet` finds the node among thousands, over arrays. `node_by_node` chooses the GPUs on it, and can also choose
among a few nodes. `filters` decide which GPUs fit and explain the others; `policies` rank those that fit, and for the
default policy `worth` and `pricing` do. `topology` keeps several GPUs of a pod close together, `together` does so for
many nodes at once; `explanation` words a refusal in one sentence.
"""

from __future__ import annotations

from gpushare.placement.node_by_node import Placement, fits_anywhere, place
from gpushare.placement.view import NodeView

__all__ = ["NodeView", "Placement", "fits_anywhere", "place"]
