"""How much the node can give, as the devices that the kubelet counts. Pure.

The ledger decides which pod gets which GPU. Scheduler and kubelet only count, and must never block what the ledger has
placed. A pod's requests count until it is deleted, so the amount of a resource is the capacity of the GPUs that take
shares, plus what pods have on GPUs that are unhealthy, gone or changing their mode, plus what shrunk pods still count
for. Too large an amount is harmless; too small an amount fails a correctly placed pod.

For shares the node advertises one device per unit of the resource. **The IDs of these devices are counters** and belong
to no GPU, because the webhook has chosen the GPU long before. A counter that a container has is always healthy, because
the kubelet would otherwise reject the pod at a restart. In all other modes an ID stands for a GPU, MIG device or
replica.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from gpushare import contract, pod
from gpushare.allocation import Allocation, GivenShare, peak
from gpushare.config import value_parsers
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.modes import device_resources
from gpushare.modes.assignment import DeviceOffer
from gpushare.nodefilters import pod_requests
from gpushare.pod import PodJson

Allocatable = Mapping[str, int]  # the amount of each resource, by its name

DECREASE_SECONDS: Final = 5.0
# The resources of shares that the kubelet counts as devices.
COUNTERS: Final = (contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE)
# The amount of each resource on a GPU that takes shares. Shares without guaranteed compute need a counted resource
# only so that the kubelet calls Allocate for them; its units are no part of a GPU.
PER_GPU: Final[Mapping[str, Callable[[Gpu], int]]] = {
    contract.RESOURCE_PERCENT: lambda _: 100,
    contract.RESOURCE_IDLE: lambda _: contract.IDLE_SHARES_PER_GPU,
    contract.RESOURCE_MEMORY: lambda gpu: gpu.memory_bytes,
}
_PER_SHARE: Final[Mapping[str, Callable[[GivenShare], int]]] = {
    contract.RESOURCE_PERCENT: lambda share: share.request_percent,
    # all containers but the one that gets the per cent
    contract.RESOURCE_IDLE: lambda share: len(share.containers) - bool(share.request_percent),
    contract.RESOURCE_MEMORY: lambda share: share.memory_bytes,
}


def allocatable(gpus: Iterable[Gpu], node: GpuNode | None, pods: Iterable[PodJson]) -> Allocatable:
    """Return the node's allocatable amount of each resource; 0 if no GPU takes shares and no pod has any.

    gpus: the node's GPUs; node: its ledger; pods: the pods on it.
    """
    fractional = [gpu for gpu in gpus if gpu.mode is Mode.FRACTIONAL]
    entries = [entry for entry in (node.allocations if node is not None else ()) if not entry.is_backfill_reservation]
    counted = _counted(entries, pods)
    units = {}
    for name, amount in PER_GPU.items():
        usable = {  # on GPUs where the ledger can place pods
            gpu.uuid: amount(gpu)
            for gpu in fractional
            if (gpu.healthy and gpu.pending_mode is None) or name == contract.RESOURCE_IDLE
        }
        claimed = beyond = 0
        for entry in entries:
            granted = {
                uuid: peak((share for share in entry.shares if uuid in share.gpu_uuids), _PER_SHARE[name])
                for uuid in entry.gpu_uuids
            }
            most = max(sum(granted.values()), counted.get(entry.id, {}).get(name, 0))
            claimed += most
            beyond += most - sum(granted[uuid] for uuid in granted.keys() & usable.keys())
        units[name] = max(sum(usable.values()) + beyond, claimed)
    return units


def while_unknown(gpus: Iterable[Gpu], in_use: Mapping[str, Collection[str]]) -> Allocatable:
    """Return the amounts while ledger or pods are unknown: all healthy GPUs', plus one unit per ID in use.

    in_use: by resource, the IDs that containers have. This admits every pod that the ledger has placed, and it is
    never used for placement.
    """
    usable = [gpu for gpu in gpus if gpu.mode is Mode.FRACTIONAL and gpu.healthy]
    return {name: sum(map(amount, usable)) + len(in_use.get(name, ())) for name, amount in PER_GPU.items()}


@dataclasses.dataclass(eq=False)
class DelayedDecrease:
    """The maximum of each resource over the last `DECREASE_SECONDS` of `measure`.

    The agent learns of changes to ledger, pods and kubelet at different times.
    """

    measure: Callable[[Iterable[Gpu]], Allocatable]
    _: dataclasses.KW_ONLY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._recent: collections.deque[tuple[float, Allocatable]] = collections.deque()  # with the time it began

    def __call__(self, gpus: Iterable[Gpu]) -> Allocatable:
        now, latest = self.clock(), self.measure(gpus)
        if not self._recent or self._recent[-1][1] != latest:
            self._recent.append((now, latest))
        while len(self._recent) > 1 and self._recent[1][0] <= now - DECREASE_SECONDS:
            self._recent.popleft()  # the next sample is already older than the window
        return {name: max(units.get(name, 0) for _, units in self._recent) for name in latest}

    @property
    def decrease_in_seconds(self) -> float:
        """The time until the amounts may decrease; infinite if they will not."""
        if len(self._recent) < 2:
            return math.inf
        return max(0.0, self._recent[1][0] + DECREASE_SECONDS - self.clock())


def trimmed_resources(manifest: PodJson) -> dict[str, object]:
    """Return a pod's container resources, reduced to ours, which are counted, and to those that may be whole GPUs."""
    prefixes = (contract.PREFIX, value_parsers.RESOURCE_PREFIX)
    return {
        kind: [
            {
                **({"restartPolicy": container["restartPolicy"]} if "restartPolicy" in container else {}),
                "resources": {
                    key: declared
                    if key == "claims"
                    else {name: text for name, text in (declared or {}).items() if name.startswith(prefixes)}
                    for key, declared in (container.get("resources") or {}).items()
                    if key in {"requests", "limits", "claims"}
                },
            }
            for container in containers
        ]
        for kind, containers in (
            ("containers", pod.containers(manifest)),
            ("initContainers", pod.init_containers(manifest)),
        )
    }


def _counted(entries: Iterable[Allocation], pods: Iterable[PodJson]) -> dict[str, Mapping[str, int]]:
    """Return the resource requests of the allocations' pods, by allocation ID."""
    uids = {entry.id: entry.pod.uid for entry in entries}
    counted: dict[str, Mapping[str, int]] = {}
    for manifest in pods:
        identity = pod.annotations_of(manifest).get(contract.ALLOCATION, "")
        if identity in uids and uids[identity] == pod.uid(manifest) and not pod.is_terminal(manifest):
            counted[identity] = pod_requests.requests(manifest)
    return counted


@dataclasses.dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """A device as the kubelet sees it: one unit of a resource."""

    id: str
    healthy: bool
    numa_node: int | None = None


# The devices of each resource, by resource name.
Advertisement = Mapping[str, tuple[AdvertisedDevice, ...]]


def of_shares(
    gpus: Iterable[Gpu], *, usable: Allocatable | None = None, in_use: Mapping[str, Collection[str]] | None = None
) -> Advertisement:
    """Return the counters of a node with these GPUs; empty lists if none of them takes shares.

    usable: by resource, how many units the node can give; by default as many as its healthy GPUs have.
    in_use: by resource, the IDs that containers have, in any format: an earlier release used another one.
    """
    fractional = [gpu for gpu in gpus if gpu.mode is Mode.FRACTIONAL]
    units = usable if usable is not None else allocatable(fractional, None, ())
    return {
        name: _advertised_counters(
            name, healthy=units[name], listed=sum(map(PER_GPU[name], fractional)), in_use=(in_use or {}).get(name, ())
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


def _advertised_counters(
    resource: str, *, healthy: int, listed: int, in_use: Collection[str]
) -> tuple[AdvertisedDevice, ...]:
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
    return tuple(AdvertisedDevice(name, name in well) for name in (*ours, *foreign) if name in advertised)
