"""Volume reach: from which nodes the volume of a claim can be reached.

A bound claim names its volume. One that is yet to be bound gets the volume that is kept for it (`claimRef`), if there
is one; where claims may not be read, that is all there is to go by.
"""

from __future__ import annotations

import collections

from gpushare.nodefilters.selectors import NodeTerm
from gpushare.nodefilters.volumes import Claim, Disk, Found, Name

Terms = tuple[NodeTerm, ...]


class VolumeReach:
    """Claims and volumes as they come and go."""

    def __init__(self) -> None:
        self._volumes: dict[Name, str] = {}  # bound claim → volume
        self._terms: dict[str, Terms | None] = {}  # by volume
        self._kept: dict[Name, set[str]] = collections.defaultdict(set)  # claim → volumes that are kept for it

    def put(self, name: Name, before: Found | None, after: Found | None) -> None:
        """An object has come, changed or (None) gone."""
        if isinstance(before, Claim):
            self._volumes.pop(name, None)
        if isinstance(after, Claim) and after.volume:
            self._volumes[name] = after.volume
        if isinstance(before, Disk):
            self._terms.pop(name[1], None)
            if before.claim is not None:
                self._kept[before.claim].discard(name[1])
                if not self._kept[before.claim]:
                    del self._kept[before.claim]
        if isinstance(after, Disk):
            self._terms[name[1]] = after.terms
            if after.claim is not None:
                self._kept[after.claim].add(name[1])

    def of(self, claim: Name) -> Terms | None:
        """The terms of which a node has to match one; None where any node will do, or nothing is known."""
        volume = self._volumes.get(claim) or min(self._kept.get(claim, ()), default="")
        return self._terms.get(volume)
