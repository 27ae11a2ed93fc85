"""Volume reach: from which nodes the volume of a claim can be reached.

A bound claim names its volume. One that is yet to be bound gets the volume that is kept for it (`claimRef`), if there
is one; where claims may not be read, that is all there is to go by. Otherwise, if its class waits for a node, it gets a
free volume that suits it, or one that its provisioner makes where the class allows it.
"""

from __future__ import annotations

import collections
from typing import Final

from gpushare.nodefilters.selectors import NodeTerm
from gpushare.nodefilters.volumes import Claim, Class, Disk, Found, Name

Terms = tuple[NodeTerm, ...]

BOUND: Final = "cannot reach the volume of the pod's claim {}"
UNBOUND: Final = "has no volume for the pod's claim {}, and none is made there"


class VolumeReach:
    """Claims, volumes and classes as they come and go."""

    def __init__(self) -> None:
        self._volumes: dict[Name, str] = {}  # bound claim → volume
        self._unbound: dict[Name, Claim] = {}
        self._terms: dict[str, Terms | None] = {}  # by volume
        self._kept: dict[Name, set[str]] = collections.defaultdict(set)  # claim → volumes that are kept for it
        self._free: dict[str, dict[str, Disk]] = collections.defaultdict(dict)  # class → volumes that nobody has
        self._classes: dict[str, Class] = {}

    def put(self, name: Name, before: Found | None, after: Found | None) -> None:
        """An object has come, changed or (None) gone."""
        match before:
            case Claim():
                self._volumes.pop(name, None)
                self._unbound.pop(name, None)
            case Disk():
                self._drop(name[1], before)
            case Class():
                self._classes.pop(name[1], None)
        match after:
            case Claim(volume=""):
                self._unbound[name] = after
            case Claim():
                self._volumes[name] = after.volume
            case Disk():
                self._terms[name[1]] = after.terms
                if after.claim is not None:
                    self._kept[after.claim].add(name[1])
                if after.offered is not None:
                    self._free[after.offered.storage_class][name[1]] = after
            case Class():
                self._classes[name[1]] = after

    def of(self, claim: Name) -> tuple[Terms, str] | None:
        """The terms of which a node has to match one, and what is against the others; None where any node will do."""
        volume = self._volumes.get(claim) or min(self._kept.get(claim, ()), default="")
        terms = self._terms.get(volume) if volume else self._candidates(claim)
        return None if terms is None else (terms, (BOUND if volume else UNBOUND).format(claim[1]))

    def _candidates(self, claim: Name) -> Terms | None:
        unbound = self._unbound.get(claim)
        known = self._classes.get(unbound.storage_class) if unbound is not None else None
        if unbound is None or unbound.asked is None or known is None or not known.waits:
            return None
        places = [] if known.is_local else [known.terms]
        places += [
            disk.terms
            for disk in self._free.get(unbound.storage_class, {}).values()
            if disk.offered is not None and disk.offered.suits(unbound.asked)
        ]
        found: list[NodeTerm] = []
        for terms in places:
            if terms is None:
                return None
            found += terms
        return tuple(dict.fromkeys(found))

    def _drop(self, name: str, disk: Disk) -> None:
        self._terms.pop(name, None)
        if disk.claim is not None:
            self._kept[disk.claim].discard(name)
            if not self._kept[disk.claim]:
                del self._kept[disk.claim]
        if disk.offered is not None:
            free = self._free[disk.offered.storage_class]
            free.pop(name, None)
            if not free:
                del self._free[disk.offered.storage_class]
