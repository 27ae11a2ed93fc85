"""GPUs to the devices that the kubelet counts. Pure.

The kubelet knows only whole devices. For shares by annotation there are as many as the node has units of the resource:
100 of `gpushare.io/gpu-percent` a GPU, some more for shares without guaranteed compute. **Their ids are counters**, and
belong to no GPU. On which GPU such a pod runs is decided by the webhook, long before the kubelet picks ids, and stands
in the ledger and in the pod's environment. So they have no NUMA topology, any of them is good in Allocate, and their
health is only a number: an id that a container has is always healthy, since the kubelet would not let its pod start
again, and of the others so many that the sum is what the node can give.

In all other modes an id is the GPU (or MIG device, or one of its replicas), and has its NUMA node and its health.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from deviceplugin.state import allocatable
from deviceplugin.state.allocatable import Allocatable
from gpushare import contract
from gpushare.gpu import Gpu, Mode
from gpushare.modes import offering, sharing

# The resources of shares that are devices to the kubelet.
COUNTERS: Final = (contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE)


@dataclasses.dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """One unit of a resource."""

    id: str
    healthy: bool
    numa_node: int | None = None


# What the kubelet is told: the devices of each resource, by its name.
Advertisement = Mapping[str, tuple[AdvertisedDevice, ...]]


def of_shares(
    gpus: Iterable[Gpu],
    *,
    usable: Allocatable | None = None,
    in_use: Mapping[str, Collection[str]] | None = None,
) -> Advertisement:
    """The counters of a node with these GPUs; empty lists where none of them takes shares.

    usable: by resource how many units the node can give; without it, as many as its healthy GPUs have.
    in_use: by resource the ids that containers hold, whatever they look like: an earlier version had others.
    """
    fractional = [gpu for gpu in gpus if gpu.mode is Mode.FRACTIONAL]
    units = usable if usable is not None else allocatable.allocatable(fractional, None, ())
    return {
        name: _counters(
            name,
            healthy=units[name],
            listed=sum(map(allocatable.OF_A_GPU[name], fractional)),
            in_use=(in_use or {}).get(name, ()),
        )
        for name in COUNTERS
    }


def of_devices(offered: offering.Offer, gpus: Iterable[Gpu], *, ill: Collection[str] = ()) -> Advertisement:
    """The devices of all other resources.

    gpus: the node's GPUs, by which a device is healthy and near to a CPU; ill: UUIDs of MIG devices that are not
    healthy though their GPU is.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    return {
        name: tuple(
            AdvertisedDevice(
                device.id,
                device.gpu in known and known[device.gpu].healthy and device.device not in ill,
                known[device.gpu].numa_node if device.gpu in known else None,
            )
            for device in devices
        )
        for name, devices in offered.items()
    }


def closed(
    devices: Iterable[AdvertisedDevice], *, gpus: Collection[str], in_use: Collection[str]
) -> tuple[AdvertisedDevice, ...]:
    """The devices as told while `gpus` (UUIDs) take nothing new: of those, only what is in use is still healthy."""
    return tuple(
        dataclasses.replace(device, healthy=False)
        if device.healthy and sharing.device_of(device.id) in gpus and device.id not in in_use
        else device
        for device in devices
    )


def and_more(resource: str, devices: Sequence[AdvertisedDevice], count: int) -> tuple[AdvertisedDevice, ...]:
    """The counters of a resource as told, and `count` healthy ones beside them."""
    if not count:
        return tuple(devices)
    told = {device.id for device in devices}
    ours = (_counter(resource, number) for number in range(len(devices) + count))
    more = itertools.islice((identity for identity in ours if identity not in told), count)
    return (*devices, *(AdvertisedDevice(identity, healthy=True) for identity in more))


def socket_name(resource: str) -> str:
    """The plugin's file in the kubelet's directory: `gpushare-gpu-percent.sock`, `gpushare-nvidia.com-gpu.sock`."""
    domain, _, name = resource.rpartition("/")
    return f"gpushare-{name if f'{domain}/' == contract.PREFIX else f'{domain}-{name}'}.sock"


def _counter(resource: str, number: int) -> str:
    return f"{resource.removeprefix(contract.PREFIX)}-{number}"


def _counters(resource: str, *, healthy: int, listed: int, in_use: Collection[str]) -> tuple[AdvertisedDevice, ...]:
    """`listed` of them, or as many as are `healthy`; the first ones are, and all that are in use."""
    most = max(healthy, listed)
    held = set(in_use)
    ours = [_counter(resource, number) for number in range(most)]
    foreign = sorted(held.difference(ours))
    free = [identity for identity in ours if identity not in held]
    # Each foreign one takes the place of the last that nobody holds.
    free = free[: max(0, len(free) - len(foreign))]
    advertised = held | set(free)
    well = held | set(free[: max(0, healthy - len(held))])
    return tuple(
        AdvertisedDevice(identity, identity in well) for identity in (*ours, *foreign) if identity in advertised
    )
