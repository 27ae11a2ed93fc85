"""Volumes: the fields of claims, volumes, classes, attachments and CSINodes that the volume filters need. Pure.

Each object is read once. As in kube-scheduler's NodeVolumeLimits (Kubernetes 1.36), a pod can mount a claim, a claim
made for the pod (a generic ephemeral volume), or an in-tree volume that a CSI driver attaches now. Inline CSI volumes
are never attached and do not count.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple

from gpushare import errors, pod, quantity
from gpushare.nodefilters import selectors

CLAIM: Final = "PersistentVolumeClaim"
VOLUME: Final = "PersistentVolume"
CLASS: Final = "StorageClass"
LIMITS: Final = "CSINode"
ATTACHMENT: Final = "VolumeAttachment"

PATHS: Final = {
    VOLUME: "/api/v1/persistentvolumes",
    CLAIM: "/api/v1/persistentvolumeclaims",
    CLASS: "/apis/storage.k8s.io/v1/storageclasses",
    LIMITS: "/apis/storage.k8s.io/v1/csinodes",
    ATTACHMENT: "/apis/storage.k8s.io/v1/volumeattachments",
}
KINDS: Final = tuple(PATHS)

DEFAULT_CLASS: Final = "*"  # no class has this name; stands for the one that the API server fills in
_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_DEFAULT_ANNOTATIONS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
# In-tree provisioner, its field in a volume, the field that identifies the volume, and the CSI driver that attaches it
# now (https://kubernetes.io/docs/concepts/storage/volumes/#types-of-volumes, CSIMigration). Other in-tree types have no
# limit.
IN_TREE: Final = (
    ("kubernetes.io/aws-ebs", "awsElasticBlockStore", "volumeID", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "azureDisk", "diskURI", "disk.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder", "volumeID", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "gcePersistentDisk", "pdName", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "portworxVolume", "volumeID", "pxd.portworx.com"),
)
_NOW: Final = {provisioner: driver for provisioner, _, _, driver in IN_TREE}
OLD_FIELDS: Final = tuple(field for _, field, _, _ in IN_TREE)

# The API server does not limit the length of names in claims and pods. No object has a longer name, and CSI limits a
# volume handle to 128 bytes.
_MAX_NAME: Final = 254
_MAX_HANDLE: Final = 1024

_RELEASED: Final = frozenset({"Released", "Failed"})  # phases of volumes whose claim was deleted

Json = Mapping[str, Any]
Name = tuple[str, str]  # namespace, name


class Volume(NamedTuple):
    """An attachable volume: the driver, and its identity within the driver. A string is the driver's own handle."""

    driver: str
    handle: Hashable


@dataclasses.dataclass(frozen=True, slots=True)
class VolumeUse:
    """A mount that may need an attachment: a claim by name, or a volume in the pod's own spec.

    `is_made`: the claim is created for this pod, with the class `storage_class`.
    """

    claim: str
    is_made: bool = False
    storage_class: str = ""
    inline: Volume | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StorageSpec:
    """The properties that a claim requests, or that an unclaimed volume has."""

    storage_class: str
    size_bytes: int
    access: frozenset[str]
    mode: str

    def satisfies(self, asked: StorageSpec) -> bool:
        """Whether this volume can be bound to a claim that asks for `asked`."""
        is_alike = (self.storage_class, self.mode) == (asked.storage_class, asked.mode)
        return is_alike and self.size_bytes >= asked.size_bytes and self.access >= asked.access


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A claim: its class, its volume if known, and otherwise what it requests."""

    storage_class: str
    volume: str
    asked: StorageSpec | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Disk:
    """A PersistentVolume: the claim it is bound to or reserved for, the nodes that reach it, and the volume to attach.

    `unclaimed`: the properties of an unclaimed volume.
    """

    claim: Name | None
    terms: tuple[selectors.NodeTerm, ...] | None
    volume: Volume | None
    unclaimed: StorageSpec | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Class:
    """A StorageClass: its driver, whether it is the default, and its creation time as a sortable string.

    `waits_for_consumer`: binding waits until a pod has a node. `is_local`: volumes are never provisioned. `terms`: the
    nodes where one can be provisioned; None for all.
    """

    driver: str
    is_default: bool
    created: str
    waits_for_consumer: bool = False
    is_local: bool = False
    terms: tuple[selectors.NodeTerm, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class AttachLimits:
    """A CSINode: the attach limit of each driver; drivers without one are unlimited."""

    most: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Attachment:
    """A volume that is, or is being, attached to a node."""

    node: str
    driver: str
    volume: str


StorageObject = Claim | Disk | Class | AttachLimits | Attachment


def mounts(manifest: pod.PodJson) -> tuple[VolumeUse, ...]:
    """Return the mounts of a pod that may need an attachment; most pods have none."""
    volumes = (manifest.get("spec") or {}).get("volumes")
    if not volumes:
        return ()
    uses = [_mount(volume, pod.namespaced_name(manifest)[1]) for volume in volumes]
    return tuple(dict.fromkeys(volume_use for volume_use in uses if volume_use is not None))


def _mount(volume: Json, pod_name: str) -> VolumeUse | None:
    if volume.get("persistentVolumeClaim"):
        return VolumeUse(_name(volume["persistentVolumeClaim"].get("claimName")))
    if volume.get("ephemeral") is not None:
        template = volume["ephemeral"].get("volumeClaimTemplate") or {}
        return VolumeUse(f"{pod_name}-{volume.get('name')}", True, _class_of(template))
    inline = _in_tree(volume)
    return None if inline is None else VolumeUse("", inline=inline)


def read(item: Json) -> StorageObject | None:
    """Read an object of one of the kinds above; None if the filters do not need it."""
    return _READERS[str(item.get("kind"))](item)


def _claim(item: Json) -> Claim:
    spec = item.get("spec") or {}
    # The scheduler does not count a claim without a class before it is bound.
    declared = _class_of(item)
    storage_class, volume = "" if declared == DEFAULT_CLASS else declared, _name(spec.get("volumeName") or "")
    wanted = (spec.get("resources") or {}).get("requests") or {}
    return Claim(storage_class, volume, None if volume else _storage(spec, storage_class, wanted))


def _disk(item: Json) -> Disk:
    spec = item.get("spec") or {}
    # A released volume still names its old claim, but a new claim of that name cannot use it.
    is_released = (item.get("status") or {}).get("phase") in _RELEASED
    owner = {} if is_released else spec.get("claimRef") or {}
    terms = selectors.of_nodes((spec.get("nodeAffinity") or {}).get("required"))
    csi = spec.get("csi") or {}
    driver, handle = str(csi.get("driver") or ""), str(csi.get("volumeHandle") or "")
    volume = Volume(sys.intern(driver), handle) if driver and handle else _in_tree(spec)
    name = (str(owner.get("namespace")), str(owner.get("name"))) if owner else None
    storage_class = _name(spec.get("storageClassName") or "")
    is_free = name is None and not is_released
    unclaimed = _storage(spec, storage_class, spec.get("capacity") or {}) if is_free else None
    return Disk(name, terms, volume, unclaimed)


def _storage(spec: Json, storage_class: str, amounts: Json) -> StorageSpec:
    try:
        size_bytes = quantity.parse_bytes(str(amounts.get("storage", "0")))
    except errors.QuantityError:
        size_bytes = 0
    access = frozenset(sys.intern(str(mode)) for mode in spec.get("accessModes") or ())
    return StorageSpec(storage_class, size_bytes, access, sys.intern(str(spec.get("volumeMode") or "Filesystem")))


def _class(item: Json) -> Class:
    metadata, provisioner = item.get("metadata") or {}, str(item.get("provisioner") or "")
    annotations = metadata.get("annotations") or {}
    return Class(
        sys.intern(_NOW.get(provisioner, provisioner)),
        any(annotations.get(key) == "true" for key in _DEFAULT_ANNOTATIONS),
        str(metadata.get("creationTimestamp") or ""),
        waits_for_consumer=item.get("volumeBindingMode") == "WaitForFirstConsumer",
        is_local=provisioner == "kubernetes.io/no-provisioner",
        terms=selectors.of_topologies(item.get("allowedTopologies")),
    )


def _limits(item: Json) -> AttachLimits | None:
    most = {
        sys.intern(str(driver.get("name"))): int(count)
        for driver in (item.get("spec") or {}).get("drivers") or ()
        if (count := (driver.get("allocatable") or {}).get("count")) is not None
    }
    return AttachLimits(most) if most else None


def _attachment(item: Json) -> Attachment | None:
    spec = item.get("spec") or {}
    driver, volume = spec.get("attacher"), (spec.get("source") or {}).get("persistentVolumeName")
    if not driver or volume is None:
        return None
    return Attachment(sys.intern(str(spec.get("nodeName"))), sys.intern(str(driver)), sys.intern(str(volume)))


_READERS: Final[Mapping[str, Callable[[Json], StorageObject | None]]] = {
    CLAIM: _claim,
    VOLUME: _disk,
    CLASS: _class,
    LIMITS: _limits,
    ATTACHMENT: _attachment,
}


def _class_of(item: Json) -> str:
    """Return the class that a claim asks for: from the deprecated annotation or the field, which may also say none."""
    annotations = (item.get("metadata") or {}).get("annotations") or {}
    if _CLASS_ANNOTATION in annotations:
        return _name(annotations[_CLASS_ANNOTATION])
    declared = (item.get("spec") or {}).get("storageClassName")
    return DEFAULT_CLASS if declared is None else _name(declared)


def _name(declared: object) -> str:
    """Return a referenced name; a too long one is cut such that it stays invalid."""
    return sys.intern(str(declared)[:_MAX_NAME])


def _in_tree(source: Json) -> Volume | None:
    for _, field, key, driver in IN_TREE:
        if declared := source.get(field):
            # A tuple, because attachments are matched by the driver's own handles, which are strings.
            return Volume(driver, (field, str(declared.get(key))[:_MAX_HANDLE]))
    return None
