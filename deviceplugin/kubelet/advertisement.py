"""GPUs to the devices that the kubelet counts. Pure.

The kubelet knows only whole devices. For shares by annotation a GPU becomes as many as there are units of the resource:
100 of `gpushare.io/gpu-percent`, some more for shares without guaranteed compute. **Their ids are counters.** On which
GPU such a pod runs is decided by the webhook, long before the kubelet picks ids, and stands in the ledger and in the
pod's environment; the kubelet may pick ids of another GPU, and that means nothing. For the same reason they have no
NUMA topology: the kubelet would align CPUs with the GPU of the ids and not with the pod's.

In all other modes an id is the GPU (or MIG device, or one of its replicas), and has its NUMA node.

What any list says is how many units of the node are usable: a GPU that is not healthy takes its own with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gpushare import contract
from gpushare.gpu import Gpu, Mode
from gpushare.modes import offering, sharing

PER_GPU: Final = {
    contract.RESOURCE_PERCENT: 100,
    contract.RESOURCE_IDLE: contract.IDLE_SHARES_PER_GPU,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One unit of a resource."""

    id: str
    healthy: bool
    numa_node: int | None = None


# What the kubelet is told: the devices of each resource, by its name.
Advertisement = Mapping[str, tuple[Device, ...]]


def of_shares(
    gpus: Iterable[Gpu],
    *,
    in_use: Mapping[str, Collection[str]] | None = None,
    slack: Mapping[str, Mapping[str, int]] | None = None,
) -> Advertisement:
    """The counters of all fractional GPUs, in the order of the GPUs; empty lists where there are none.

    slack: by resource and UUID, how many more than the GPU has.
    in_use: by resource the ids that containers hold. Such an id stays in the list when its GPU is fractional no more,
    or has no more so many, and takes the place of an id that nobody holds.
    """
    fractional = [card for card in gpus if card.mode is Mode.FRACTIONAL]
    found = {}
    for name, per_gpu in PER_GPU.items():
        more = (slack or {}).get(name, {})
        devices = [
            Device(f"{card.uuid}::{unit}", card.healthy)
            for card in fractional
            for unit in range(per_gpu + more.get(card.uuid, 0))
        ]
        found[name] = _keeping(devices, (in_use or {}).get(name, ()))
    return found


def of_devices(offered: offering.Offer, gpus: Iterable[Gpu], *, ill: Collection[str] = ()) -> Advertisement:
    """The devices of all other resources.

    gpus: the node's GPUs, by which a device is healthy and near to a CPU; ill: UUIDs of MIG devices that are not
    healthy though their GPU is.
    """
    known = {card.uuid: card for card in gpus}
    return {
        name: tuple(
            Device(
                one.id,
                one.gpu in known and known[one.gpu].healthy and one.device not in ill,
                known[one.gpu].numa_node if one.gpu in known else None,
            )
            for one in devices
        )
        for name, devices in offered.items()
    }


def closed(devices: Iterable[Device], *, cards: Collection[str], in_use: Collection[str]) -> tuple[Device, ...]:
    """The devices as told while `cards` (UUIDs) take nothing new: of those, only what is in use is still healthy."""
    return tuple(
        dataclasses.replace(device, healthy=False)
        if device.healthy and sharing.device_of(device.id) in cards and device.id not in in_use
        else device
        for device in devices
    )


def socket_name(resource: str) -> str:
    """The plugin's file in the kubelet's directory: `gpushare-gpu-percent.sock`, `gpushare-nvidia.com-gpu.sock`."""
    domain, _, name = resource.rpartition("/")
    return f"gpushare-{name if f'{domain}/' == contract.PREFIX else f'{domain}-{name}'}.sock"


def _keeping(devices: list[Device], in_use: Collection[str]) -> tuple[Device, ...]:
    foreign = sorted(set(in_use) - {device.id for device in devices})
    free = [position for position, device in enumerate(devices) if device.id not in in_use]
    # The last ones first: the kubelet gives out the first ones first.
    for position, identity in zip(reversed(free), foreign, strict=False):
        devices[position] = dataclasses.replace(devices[position], id=identity)
    return tuple(devices)
