"""GPUs to the devices that the kubelet counts. Pure.

The kubelet knows only whole devices, so a GPU becomes as many as there are units of the resource: 100 for
`gpushare.io/gpu-percent`, some more for shares without guaranteed compute. **The ids are counters.** On which GPU a pod
runs is decided by the webhook, long before the kubelet picks ids, and stands in the ledger and in the pod's
environment; the kubelet may pick ids of another GPU, and that means nothing. For the same reason no NUMA topology is
reported: the kubelet would align CPUs with the GPU of the ids and not with the pod's.

What the ids do say is how many units of the node are usable: a GPU that is not healthy takes its own with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gpushare import contract
from gpushare.gpu import Gpu, Mode


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """One extended resource of the node; `socket_name` is the plugin's file in the kubelet's directory."""

    name: str
    devices_per_gpu: int

    @property
    def socket_name(self) -> str:
        """`gpushare.io/gpu-percent` is served on `gpushare-gpu-percent.sock`."""
        return f"gpushare-{self.name.rpartition('/')[2]}.sock"


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One unit of a resource."""

    id: str
    healthy: bool


RESOURCES = (
    Resource(contract.RESOURCE_PERCENT, devices_per_gpu=100),
    Resource(contract.RESOURCE_IDLE, devices_per_gpu=contract.IDLE_SHARES_PER_GPU),
)


def devices(gpus: Iterable[Gpu], resource: Resource) -> tuple[Device, ...]:
    """The devices of `resource`, in the order of the GPUs; only fractional GPUs have any."""
    return tuple(
        Device(f"{card.uuid}::{unit}", card.healthy)
        for card in gpus
        if card.mode is Mode.FRACTIONAL
        for unit in range(resource.devices_per_gpu)
    )
