"""The labels that describe a node's GPUs: count, model, memory, sharing, MIG and driver. Pure.

Names and values are exactly NVIDIA's, so that node selectors written for GPU Feature Discovery keep working. A label
names one model, but a node may have several. Then the most frequent model counts, and the first of several equally
frequent ones, so that the labels are the same after every start. A node without a GPU has only the timestamp.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

PREFIX: Final = "nvidia.com/"
Labels = dict[str, str]
_DROPPED: Final = re.compile(r"[^A-Za-z0-9\-_. ]")
_MIG_STRATEGIES: Final = ("none", "single", "mixed")
_MODES: Final = {0x030000: "graphics", 0x030200: "compute"}  # by PCI class: VGA, 3D
# By the first compute capability of each family. A GPU's family is the last line with its major version that does not
# exceed its capability.
_FAMILIES: Final = (
    ((1, 0), "tesla"),
    ((2, 0), "fermi"),
    ((3, 0), "kepler"),
    ((5, 0), "maxwell"),
    ((6, 0), "pascal"),
    ((7, 0), "volta"),
    ((7, 5), "turing"),
    ((8, 0), "ampere"),
    ((8, 9), "ada-lovelace"),
    ((9, 0), "hopper"),
    ((10, 0), "blackwell"),
    ((12, 0), "blackwell"),
    ((13, 0), "rubin"),
)
UNKNOWN: Final = "unknown"


class DriverVersionError(ValueError):
    """The driver's version has an unexpected form; the message gives the valid ones."""


def sanitised(text: str) -> str:
    """Return `text` as a label's value: invalid characters are dropped, and words are joined by `-`."""
    return "-".join(_DROPPED.sub("", text).split())


def fitting(value: str) -> str:
    """Return the value as the API server accepts it: at most 63 characters, with a letter or digit at both ends."""
    return value[:63].strip("-_.")


def family(capability: tuple[int, int]) -> str:
    """Return the architecture of a compute capability; `undefined` if NVIDIA has not named it."""
    known = [name for since, name in _FAMILIES if since[0] == capability[0] and since <= capability]
    return known[-1] if known else "undefined"


def mode(pci_classes: Sequence[int]) -> Labels:
    """Return the label `gpu.mode` for GPUs with these 24-bit PCI classes; empty without GPUs."""
    if not pci_classes:
        return {}
    word = _MODES.get(pci_classes[0], UNKNOWN) if len(set(pci_classes)) == 1 else UNKNOWN
    return {f"{PREFIX}gpu.mode": word}


def versions(driver: str, cuda: tuple[int, int]) -> Labels:
    """Return the labels of driver version and newest supported CUDA version. Raises DriverVersionError."""
    parts = driver.split(".")
    if not 2 <= len(parts) <= 3:
        raise DriverVersionError(f"the driver's version is {driver!r}, and not of the form X.Y or X.Y.Z")
    major, minor, revision = [*parts, ""][:3]
    cuda_major, cuda_minor = map(str, cuda)
    return {
        f"{PREFIX}{key}": value
        for key, value in {
            "cuda.driver.major": major,
            "cuda.driver.minor": minor,
            "cuda.driver.rev": revision,
            "cuda.runtime.major": cuda_major,
            "cuda.runtime.minor": cuda_minor,
            "cuda.driver-version.major": major,
            "cuda.driver-version.minor": minor,
            "cuda.driver-version.revision": revision,
            "cuda.driver-version.full": driver,
            "cuda.runtime-version.major": cuda_major,
            "cuda.runtime-version.minor": cuda_minor,
            "cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
        }.items()
    }


GPU: Final = "nvidia.com/gpu"
_ENGINES: Final = ("copy", "decoder", "encoder", "jpeg", "ofa")
TIMESTAMP: Final = f"{PREFIX}gfd.timestamp"
VGPU: Final = f"{PREFIX}vgpu.present"


class StrategyError(ValueError):
    """The MIG strategy does not exist or conflicts with other settings; the message says which values are valid."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replication:
    """A resource whose devices are each offered `replicas` times, under the name `rename` if that is set."""

    resource: str
    replicas: int
    rename: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledSharing:
    """How resources are shared. kind: `time-slicing`, `mps`, or `none`."""

    kind: str = "none"
    replications: tuple[Replication, ...] = ()

    def replication(self, resource: str) -> Replication:
        """Return the replication of `resource`; one replica if it is not shared."""
        return next((item for item in self.replications if item.resource == resource), Replication(resource, 1))


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledMigDevice:
    """A MIG device. profile: for example `1g.10gb`; gi_slices, ci_slices: its GPU and compute instance's slices."""

    profile: str
    memory_mib: int
    gi_slices: int
    ci_slices: int
    multiprocessors: int = 0
    engines: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledGpu:
    """A GPU as its labels describe it. memory_mib: 0 if unknown; capability: (0, 0) if unknown."""

    model: str
    memory_mib: int
    capability: tuple[int, int] = (0, 0)
    mig_enabled: bool = False
    mig_devices: tuple[LabelledMigDevice, ...] = ()


def resource_labels(gpus: Sequence[LabelledGpu], strategy: str, sharing: LabelledSharing) -> Labels:
    """Return the labels of the node's GPU resources under a MIG strategy. Raises StrategyError."""
    if strategy not in _MIG_STRATEGIES:
        raise StrategyError(f"migStrategy is {strategy!r}: must be one of {', '.join(_MIG_STRATEGIES)}")
    if not gpus:
        return {}
    counts = collections.Counter(gpu.model for gpu in gpus)
    model = counts.most_common(1)[0][0]
    alike = [gpu for gpu in gpus if gpu.model == model]
    # Prefer a GPU without MIG as the example: it describes the model better, and only such GPUs are shared.
    whole = [gpu for gpu in alike if not gpu.mig_enabled]
    labels = whole_gpu_labels((whole or alike)[0], counts[model], sharing if whole else None)
    if strategy == "none":
        return labels
    by_strategy = _single if strategy == "single" else _mixed
    return labels | {f"{PREFIX}mig.strategy": strategy} | by_strategy(gpus, sharing)


def whole_gpu_labels(gpu: LabelledGpu, count: int, sharing: LabelledSharing | None) -> Labels:
    """Return the labels of `count` whole GPUs like `gpu`. sharing: None if it does not apply to them."""
    if count == 0:
        return {}
    labels = _base(GPU, count, (gpu.model,), sharing) | _memory(GPU, gpu.memory_mib)
    if gpu.capability[0]:
        labels[f"{GPU}.family"] = family(gpu.capability)
        labels[f"{GPU}.compute.major"], labels[f"{GPU}.compute.minor"] = map(str, gpu.capability)
    return labels


def mig_device_labels(
    resource: str, model: str, device: LabelledMigDevice, count: int, sharing: LabelledSharing
) -> Labels:
    if count == 0:
        return {}
    attributes = {
        "multiprocessors": device.multiprocessors,
        "slices.gi": device.gi_slices,
        "slices.ci": device.ci_slices,
        **{f"engines.{engine}": device.engines.get(engine, 0) for engine in _ENGINES},
    }
    return (
        _base(resource, count, (model, "MIG", _in_label(device.profile)), sharing)
        | _memory(resource, device.memory_mib)
        | {f"{resource}.{key}": str(value) for key, value in attributes.items()}
    )


def mig_capable(capable: Iterable[bool]) -> Labels:
    """Return the label that says whether any GPU supports MIG; empty without GPUs."""
    known = tuple(capable)
    return {f"{PREFIX}mig.capable": str(any(known)).lower()} if known else {}


def mps_capable(sharing: LabelledSharing, mig_enabled: Iterable[bool] = ()) -> Labels:
    """Return the label that says whether GPUs are shared by MPS, not whether they could be. Raises StrategyError."""
    capable = sharing.kind == "mps" and any(replication.replicas > 1 for replication in sharing.replications)
    if capable and any(mig_enabled):
        raise StrategyError(
            "MPS sharing is not supported on MIG devices: share them by timeSlicing, or disable MIG on the GPUs"
        )
    return {f"{PREFIX}mps.capable": str(capable).lower()}


def mig_resource(profile: str) -> str:
    """Return the resource of a MIG profile under the strategy `mixed`: `nvidia.com/mig-1g.10gb.me` for `1g.10gb+me`."""
    return f"{PREFIX}mig-{_in_label(profile)}"


def _in_label(profile: str) -> str:
    """Return a MIG profile without the `+` that labels cannot contain."""
    return profile.replace("+", ".")


def _single(gpus: Sequence[LabelledGpu], sharing: LabelledSharing) -> Labels:
    enabled = [gpu for gpu in gpus if gpu.mig_enabled]
    if not enabled:
        return {}
    devices = [device for gpu in enabled for device in gpu.mig_devices]
    is_uniform = (
        len(enabled) == len(gpus)
        and all(gpu.mig_devices for gpu in enabled)
        and len({device.profile for device in devices}) == 1
    )
    if not is_uniform:
        return {
            f"{GPU}.count": "0",
            f"{GPU}.replicas": "0",
            f"{GPU}.sharing-strategy": "",
            f"{GPU}.memory": "0",
            f"{GPU}.product": fitting(f"{sanitised(enabled[0].model)}-MIG-INVALID"),
        }
    return mig_device_labels(GPU, enabled[0].model, devices[0], len(devices), sharing)


def _mixed(gpus: Sequence[LabelledGpu], sharing: LabelledSharing) -> Labels:
    labels: Labels = {}
    devices = [(gpu.model, device) for gpu in gpus if gpu.mig_enabled for device in gpu.mig_devices]
    counts = collections.Counter(device.profile for _, device in devices)
    for model, device in reversed(devices):  # so that the first device of each profile wins
        resource = mig_resource(device.profile)
        labels |= mig_device_labels(resource, model, device, counts[device.profile], sharing)
    return labels


def _base(resource: str, count: int, parts: tuple[str, ...], sharing: LabelledSharing | None) -> Labels:
    replication = sharing.replication(resource) if sharing is not None else Replication(resource, 0)
    is_shared = replication.replicas > 1
    is_renamed = replication.rename not in ("", resource)
    product = [sanitised(part) for part in parts if part] + ["SHARED"] * (is_shared and not is_renamed)
    return {
        f"{resource}.count": str(count),
        f"{resource}.replicas": str(max(replication.replicas, 1) if sharing is not None else 0),
        f"{resource}.sharing-strategy": sharing.kind if sharing is not None and is_shared else "none",
        f"{resource}.product": fitting("-".join(product)),
    }


def _memory(resource: str, memory_mib: int) -> Labels:
    return {f"{resource}.memory": str(memory_mib)} if memory_mib else {}


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts that the driver and the node report about themselves.

    pci_classes, mig_capable, virtual: one entry per GPU. virtual: whether the GPU is a vGPU, a part that a hypervisor
    assigned. cliques: each GPU's NVLink fabric as `CLUSTER.CLIQUE`; empty if it is in none.
    """

    driver_version: str
    cuda_version: tuple[int, int]
    machine: str = ""
    gpus: tuple[LabelledGpu, ...] = ()
    pci_classes: tuple[int, ...] = ()
    mig_capable: tuple[bool, ...] = ()
    cliques: tuple[str, ...] = ()
    virtual: tuple[bool, ...] = ()


def all_labels(
    facts: NodeFacts | None, *, strategy: str, sharing: LabelledSharing, started: int | None = None
) -> Labels:
    """Return all labels of a node with these facts; None if there is no driver.

    started: the timestamp label in Unix seconds; None for no such label. Raises StrategyError and DriverVersionError.
    """
    time = {} if started is None else {TIMESTAMP: str(started)}
    if facts is None or not facts.gpus:
        return time
    cliques = facts.cliques
    return {
        **time,
        f"{PREFIX}gpu.machine": fitting(sanitised(facts.machine)) or UNKNOWN,
        **versions(facts.driver_version, facts.cuda_version),
        **mig_capable(facts.mig_capable),
        **mps_capable(sharing),
        **resource_labels(facts.gpus, strategy, sharing),
        **mode(facts.pci_classes),
        # The fabric that all GPUs are in; no label if there is none or more than one.
        **({f"{PREFIX}gpu.clique": cliques[0]} if cliques and cliques[0] and len(set(cliques)) == 1 else {}),
        VGPU: str(any(facts.virtual)).lower(),
    }
