"""Volume filters: which nodes can attach and reach the volumes of a pod, by kube-scheduler's rules.

Attaching (NodeVolumeLimits): a CSINode limits the volumes of each CSI driver; without a limit any number fits. A volume
counts once per node, however many pods mount it. An unbound claim counts for its class's driver, a missing claim does
not count, and attached volumes count even if no pod mounts them. Nodes are recounted on demand, after a change.

Reaching (VolumeBinding): a bound claim names its volume, and an unbound one may have a volume reserved (`claimRef`).
Otherwise, if its class waits for the first consumer, the claim gets a suitable free volume or a provisioned one where
the class allows it. Without permission to read claims only reservations are known.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from gpushare.nodefilters import volumes
from gpushare.nodefilters.node_info import PodInfo
from gpushare.nodefilters.selectors import NodeTerm
from gpushare.nodefilters.volumes import AttachLimits, Attachment, Claim, Class, Disk, Name, StorageObject, Volume

_A = TypeVar("_A", bound=Hashable)
_B = TypeVar("_B")


class Full(NamedTuple):
    """A driver whose attach limit a node would exceed: volumes in use, the limit, and volumes that the pod adds."""

    driver: str
    used: int
    most: int
    more: int

    def __str__(self) -> str:
        return (
            f"would exceed max volume count: {self.used} of {self.most} volumes of {self.driver} are in use, "
            f"and the pod adds {self.more}"
        )


class AttachFilter:
    """Counts volumes by node and CSI driver. Not thread-safe."""

    def __init__(self) -> None:
        self._claims: dict[Name, Claim] = {}
        self._volumes: dict[str, Volume | None] = {}  # None: nothing is attached for it
        self._classes: dict[str, Class] = {}
        self._limits: dict[str, Mapping[str, int]] = {}
        self._attachments: dict[str, Attachment] = {}
        self._attached: dict[str, set[str]] = collections.defaultdict(set)  # node -> names of attachments
        self._mounting: dict[str, dict[Hashable, PodInfo]] = collections.defaultdict(dict)  # by node
        # Indexes to find the nodes that a change affects; duplicates are kept, one per reference.
        self._with_claim: dict[Name, tuple[str, ...]] = {}  # claim -> nodes
        self._naming: dict[str, tuple[Name, ...]] = {}  # volume -> claims
        self._with_volume: dict[str, tuple[str, ...]] = {}  # volume -> nodes it is attached to
        self._changed: set[str] = set()  # nodes to recount
        self._there: dict[str, frozenset[Volume]] = {}  # by node: volumes that its pods mount
        self._free: dict[str, dict[str, int]] = collections.defaultdict(dict)  # driver -> node -> volumes left

    def add(self, key: Hashable, pod: PodInfo) -> None:
        """Count a pod that mounts volumes."""
        self._mounting[pod.node][key] = pod
        for mount in pod.mounts:
            _link(self._with_claim, (pod.namespace, mount.claim), pod.node)
        self._changed.add(pod.node)

    def remove(self, key: Hashable, pod: PodInfo) -> None:
        """Stop counting a pod's volumes."""
        del self._mounting[pod.node][key]
        if not self._mounting[pod.node]:
            del self._mounting[pod.node]
        for mount in pod.mounts:
            _unlink(self._with_claim, (pod.namespace, mount.claim), pod.node)
        self._changed.add(pod.node)

    def put(self, name: Name, disk: StorageObject) -> None:
        """Add or replace a storage object."""
        self.drop(name, disk)  # this also marks the nodes to recount
        match disk:
            case Claim():
                self._claims[name] = disk
                if disk.volume:
                    _link(self._naming, disk.volume, name)
            case Disk():
                self._volumes[name[1]] = disk.volume
            case Class():
                self._classes[name[1]] = disk
            case AttachLimits():
                self._limits[name[1]] = disk.most
                self._changed.add(name[1])
            case Attachment():
                self._attachments[name[1]] = disk
                self._attached[disk.node].add(name[1])
                _link(self._with_volume, disk.volume, disk.node)
                self._changed.add(disk.node)

    def drop(self, name: Name, gone: StorageObject) -> None:
        """Remove a storage object of this kind, if it exists."""
        match gone:
            case Claim():
                before = self._claims.pop(name, None)
                if before is not None and before.volume:
                    _unlink(self._naming, before.volume, name)
                self._changed.update(self._with_claim.get(name, ()))
            case Disk():
                self._volumes.pop(name[1], None)
                for claim in self._naming.get(name[1], ()):
                    self._changed.update(self._with_claim.get(claim, ()))
                self._changed.update(self._with_volume.get(name[1], ()))
            case Class():
                self._classes.pop(name[1], None)
                self._changed.update(self._limits)
            case AttachLimits():
                for driver in self._limits.pop(name[1], ()):
                    self._free[driver].pop(name[1], None)
                self._there.pop(name[1], None)
            case Attachment():
                was = self._attachments.pop(name[1], None)
                if was is not None:
                    self._attached[was.node].discard(name[1])
                    if not self._attached[was.node]:
                        del self._attached[was.node]
                    _unlink(self._with_volume, was.volume, was.node)
                    self._changed.add(was.node)

    def missing(self, namespace: str, mounts: Iterable[volumes.VolumeUse]) -> str:
        """Return the first mounted claim that does not exist, or an empty string; skip claims made for the pod."""
        asked = (mount.claim for mount in mounts if mount.inline is None and not mount.is_made)
        return next((claim for claim in asked if (namespace, claim) not in self._claims), "")

    def full(self, namespace: str, mounts: Iterable[volumes.VolumeUse]) -> dict[str, Full]:
        """Return the nodes that cannot attach all volumes of a pod, which is on none of them."""
        if not mounts or not self._limits:
            return {}
        wanted = {volume for mount in mounts if (volume := self._volume(namespace, mount, None)) is not None}
        if not wanted:
            return {}
        self.count()
        full_nodes: dict[str, Full] = {}
        for driver, more in sorted(collections.Counter(volume.driver for volume in wanted).items()):
            free = self._free.get(driver, {})
            for node in [name for name, left in free.items() if left < more]:  # few nodes of very many
                there, new, most = self._there[node], more, self._limits[node][driver]
                if not wanted.isdisjoint(there):
                    new = sum(volume.driver == driver and volume not in there for volume in wanted)
                if new and free[node] < new and node not in full_nodes:
                    full_nodes[node] = Full(driver, most - free[node], most, new)
        return full_nodes

    def count(self, most: int | None = None) -> bool:
        """Recount the changed nodes, at most `most` of them; return whether any are left."""
        for node in list(itertools.islice(self._changed, most)):
            self._changed.discard(node)
            limits = self._limits.get(node)
            if limits is None:
                continue
            there = frozenset(
                volume
                for key, pod in self._mounting.get(node, {}).items()
                for mount in pod.mounts
                if (volume := self._volume(pod.namespace, mount, key)) is not None
            )
            used = collections.Counter(volume.driver for volume in there | self._left(node))
            self._there[node] = there
            for driver, limit in limits.items():
                self._free[driver][node] = limit - used[driver]
        return bool(self._changed)

    def _left(self, node: str) -> set[Volume]:
        """Return the volumes attached to a node, mounted or not; like the scheduler, only those with a CSI handle."""
        there = (self._attachments[name] for name in self._attached.get(node, ()))
        known = ((attachment.driver, self._volumes.get(attachment.volume)) for attachment in there)
        return {Volume(driver, volume.handle) for driver, volume in known if volume and isinstance(volume.handle, str)}

    def _volume(self, namespace: str, mount: volumes.VolumeUse, who: Hashable) -> Volume | None:
        """Return the volume to attach for a mount, or None. `who`: the pod, which identifies claims made for it."""
        if mount.inline is not None:
            return mount.inline
        claim = self._claims.get((namespace, mount.claim))
        if claim is None:
            driver = self._driver(mount.storage_class) if mount.is_made else ""
            return Volume(driver, (who, mount.claim)) if driver else None
        if claim.volume in self._volumes:
            return self._volumes[claim.volume]
        driver = self._driver(claim.storage_class)
        return Volume(driver, (namespace, mount.claim)) if driver else None

    def _driver(self, storage_class: str) -> str:
        if storage_class == volumes.DEFAULT_CLASS:
            by_default = [(known.created, name) for name, known in self._classes.items() if known.is_default]
            newest = max((created for created, _ in by_default), default="")
            storage_class = min((name for created, name in by_default if created == newest), default="")
        known = self._classes.get(storage_class)
        return known.driver if known is not None else ""


Terms = tuple[NodeTerm, ...]

BOUND: Final = "cannot reach the volume of the pod's claim {}"
UNBOUND: Final = "has no volume for the pod's claim {}, and none can be provisioned there"


class VolumeReach:
    """The claims, volumes and classes that decide which nodes can reach the volume of a claim."""

    def __init__(self) -> None:
        self._volumes: dict[Name, str] = {}  # bound claim → volume
        self._unbound: dict[Name, Claim] = {}
        self._terms: dict[str, Terms | None] = {}  # by volume
        self._kept: dict[Name, set[str]] = collections.defaultdict(set)  # claim → volumes reserved for it
        self._free: dict[str, dict[str, Disk]] = collections.defaultdict(dict)  # class → unclaimed volumes
        self._classes: dict[str, Class] = {}

    def put(self, name: Name, before: StorageObject | None, after: StorageObject | None) -> None:
        """Replace, add or (None) remove an object."""
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
                if after.unclaimed is not None:
                    self._free[after.unclaimed.storage_class][name[1]] = after
            case Class():
                self._classes[name[1]] = after

    def of(self, claim: Name) -> tuple[Terms, str] | None:
        """Return the node terms, any of which must match, with the reason against others; None if all nodes fit."""
        volume = self._volumes.get(claim) or min(self._kept.get(claim, ()), default="")
        terms = self._terms.get(volume) if volume else self._candidates(claim)
        return None if terms is None else (terms, (BOUND if volume else UNBOUND).format(claim[1]))

    def _candidates(self, claim: Name) -> Terms | None:
        unbound = self._unbound.get(claim)
        known = self._classes.get(unbound.storage_class) if unbound is not None else None
        if unbound is None or unbound.asked is None or known is None or not known.waits_for_consumer:
            return None
        places = [] if known.is_local else [known.terms]
        places += [
            disk.terms
            for disk in self._free.get(unbound.storage_class, {}).values()
            if disk.unclaimed is not None and disk.unclaimed.satisfies(unbound.asked)
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
        if disk.unclaimed is not None:
            free = self._free[disk.unclaimed.storage_class]
            free.pop(name, None)
            if not free:
                del self._free[disk.unclaimed.storage_class]


def _link(links: dict[_A, tuple[_B, ...]], key: _A, value: _B) -> None:
    links[key] = (*links.get(key, ()), value)


def _unlink(links: dict[_A, tuple[_B, ...]], key: _A, value: _B) -> None:
    known = list(links[key])
    known.remove(value)
    if known:
        links[key] = tuple(known)
    else:
        del links[key]
