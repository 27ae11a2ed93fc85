"""The modules of bench/openb; bench/ stays on the path no longer than that: other modules there have names of packages."""

from __future__ import annotations

import sys
from pathlib import Path

_BENCH = str(Path(__file__).resolve().parents[2] / "bench")

sys.path.append(_BENCH)
try:
    from openb import bound, known_policies, links, own_policies, trace, worlds
finally:
    sys.path.remove(_BENCH)

__all__ = ["bound", "known_policies", "links", "own_policies", "trace", "worlds"]
