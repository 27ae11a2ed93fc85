"""Placement: choosing node and GPU for a request. Pure: a view of the GPUs and a request → `Placement` or `Refusal`.

`reference.place` is short enough to be read; `fleet.Fleet` gives the same answers at any size and makes the better
choice. `filters` say which GPUs will do and why the others will not, `policies` which of those is best for the
reference, `worth` and `pricing` for the fleet; `topology` which of several GPUs belong together, `together` the same
for many nodes at once; `explanation` makes the one sentence of a refusal.
"""

from __future__ import annotations

from gpushare.placement.reference import Placement, fits_anywhere, place
from gpushare.placement.view import NodeView

__all__ = ["NodeView", "Placement", "fits_anywhere", "place"]
