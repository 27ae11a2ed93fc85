"""Converts GPUs to the devices that the kubelet counts. Pure.

The kubelet only counts whole devices. For shares by annotation, the node advertises one device per unit of the
resource: 100 of `gpushare.io/gpu-percent` per GPU, and some more for shares without guaranteed compute. **The IDs of
these devices are counters** and belong to no GPU: the webhook has chosen the pod's GPU long before the kubelet picks
IDs, and has written it into the ledger and the pod's environment. So counters have no NUMA topology, Allocate accepts
any of them, and only the number of healthy ones matters. A counter that a container has is always healthy, because
the kubelet would otherwise reject the pod at a restart. The others are healthy up to what the node can still give.

In all other modes an ID stands for a GPU, a MIG device or a replica, with its NUMA node and health.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from deviceplugin.state import allocatable
from deviceplugin.state.allocatable import Allocatable
from gpushare import contract
from gpushare.gpunode import Gpu, Mode
from gpushare.modes import device_resources
from gpushare.modes.assignment import DeviceOffer

# The resources of shares that the kubelet counts as devices.
COUNTERS: Final = (contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE)


@dataclasses.dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """A device as the kubelet sees it: one unit of a resource."""

    id: str
    healthy: bool
    numa_node: int | None = None


# The devices of each resource, by resource name.
Advertisement = Mapping[str, tuple[AdvertisedDevice, ...]]


def of_shares(
    gpus: Iterable[Gpu],
    *,
    usable: Allocatable | None = None,
    in_use: Mapping[str, Collection[str]] | None = None,
) -> Advertisement:
    """Return the counters of a node with these GPUs; empty lists if none of them takes shares.

    usable: by resource, how many units the node can give; by default as many as its healthy GPUs have.
    in_use: by resource, the IDs that containers have, in any format: an earlier release used another one.
    """
    fractional = [gpu for gpu in gpus if gpu.mode is Mode.FRACTIONAL]
    units = usable if usable is not None else allocatable.allocatable(fractional, None, ())
    return {
        name: _counters(
            name,
            healthy=units[name],
            listed=sum(map(allocatable.PER_GPU[name], fractional)),
            in_use=(in_use or {}).get(name, ()),
        )
        for name in COUNTERS
    }


def of_devices(offered: DeviceOffer, gpus: Iterable[Gpu], *, unhealthy: Collection[str] = ()) -> Advertisement:
    """Return the devices of all other resources.

    gpus: the node's GPUs, for health and NUMA node; unhealthy: UUIDs of unhealthy MIG devices on healthy GPUs.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    return {
        name: tuple(
            AdvertisedDevice(
                device.id,
                device.gpu in known and known[device.gpu].healthy and device.device not in unhealthy,
                known[device.gpu].numa_node if device.gpu in known else None,
            )
            for device in devices
        )
        for name, devices in offered.items()
    }


def closed(
    devices: Iterable[AdvertisedDevice], *, gpus: Collection[str], in_use: Collection[str]
) -> tuple[AdvertisedDevice, ...]:
    """Return the devices with those of closed GPUs (UUIDs) marked unhealthy, unless a container has them."""
    return tuple(
        dataclasses.replace(device, healthy=False)
        if device.healthy and device_resources.device_of(device.id) in gpus and device.id not in in_use
        else device
        for device in devices
    )


def and_more(resource: str, devices: Sequence[AdvertisedDevice], count: int) -> tuple[AdvertisedDevice, ...]:
    """Return the advertised counters together with `count` additional healthy ones."""
    if not count:
        return tuple(devices)
    advertised = {device.id for device in devices}
    ours = (_counter(resource, number) for number in range(len(devices) + count))
    more = itertools.islice((identity for identity in ours if identity not in advertised), count)
    return (*devices, *(AdvertisedDevice(identity, healthy=True) for identity in more))


def socket_name(resource: str) -> str:
    """Return the file name of a plugin's socket, as `gpushare-gpu-percent.sock` or `gpushare-nvidia.com-gpu.sock`."""
    domain, _, name = resource.rpartition("/")
    return f"gpushare-{name if f'{domain}/' == contract.PREFIX else f'{domain}-{name}'}.sock"


def _counter(resource: str, number: int) -> str:
    return f"{resource.removeprefix(contract.PREFIX)}-{number}"


def _counters(resource: str, *, healthy: int, listed: int, in_use: Collection[str]) -> tuple[AdvertisedDevice, ...]:
    """Return max(listed, healthy) counters; those in use and the first free ones are healthy."""
    most = max(healthy, listed)
    held = set(in_use)
    ours = [_counter(resource, number) for number in range(most)]
    foreign = sorted(held.difference(ours))
    free = [identity for identity in ours if identity not in held]
    # Each foreign ID replaces the last free counter.
    free = free[: max(0, len(free) - len(foreign))]
    advertised = held | set(free)
    well = held | set(free[: max(0, healthy - len(held))])
    return tuple(
        AdvertisedDevice(identity, identity in well) for identity in (*ours, *foreign) if identity in advertised
    )
