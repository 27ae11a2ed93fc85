"""Answers GetPreferredAllocation with the best devices of a resource, and checks the ids of an Allocate request.

Shared devices are chosen one by one, each from the device with the fewest or the most allocated ids. Slices of a MIG
device share its time and memory, so the MIG device's own ids are compared first and its GPU's ids second, as absolute
counts. Ties go to the device that was picked least in this answer, then to the first in order, so equal requests get
equal answers.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Final

from deviceplugin.allocation import aligned
from gpushare import errors
from gpushare.gpunode import Mode
from gpushare.modes import device_resources
from gpushare.modes.assignment import Offered
from gpushare.modes.hardware_gpu import WholeDevice

PACKED: Final = "packed"


class AllocationError(errors.GpushareError):
    """A request of the kubelet that cannot be met."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """The ids of a device or GPU: the total, and those still available."""

    total: int
    available: int

    @property
    def allocated(self) -> int:
        return self.total - self.available


def rank(load: Load, policy: str) -> int:
    """Return the sort key of a device; the lowest goes first. An empty policy means `distributed`."""
    return -load.allocated if policy == PACKED else load.allocated


def prefer_greedily(
    devices: Mapping[str, str],
    *,
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    policy: str,
    gpus: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Choose `size` ids: the `required` ones first, then the best of the `available` ones.

    devices: the device of every id of the resource. gpus: the GPU of each MIG device. Raises AllocationError if too few
    ids are free, or if more are required than requested.
    """
    kept, offered = set(required), set(available)
    gpu_of = {device: (gpus or {}).get(device, device) for device in devices.values()}
    candidates: dict[str, list[str]] = {device: [] for device in gpu_of}
    free_on = dict.fromkeys(gpu_of.values(), 0)
    for identity, device in devices.items():  # in the resource's order, so that the kubelet's order does not matter
        if identity in offered and identity not in kept:
            candidates[device].append(identity)
            free_on[gpu_of[device]] += 1
    needed = size - len(required)
    if needed < 0:
        raise AllocationError(f"{len(required)} devices must be in an allocation of {size}: ask for that many")
    free = sum(map(len, candidates.values()))
    if free < needed:
        raise AllocationError(
            f"not enough available devices to satisfy allocation: {needed} more are needed, and {free} are free"
        )
    totals = collections.Counter(devices.values())
    totals_on = collections.Counter(gpu_of[device] for device in devices.values())
    picked: collections.Counter[tuple[str, str]] = collections.Counter()

    def order(device: str) -> tuple[int, int, int, int]:
        gpu = gpu_of[device]
        of_device, of_gpu = Load(totals[device], len(candidates[device])), Load(totals_on[gpu], free_on[gpu])
        picks = picked["device", device], picked["gpu", gpu]
        return rank(of_device, policy), rank(of_gpu, policy), *picks

    answer = list(required)
    for _ in range(needed):
        device = min((device for device, ids in candidates.items() if ids), key=order)
        answer.append(candidates[device].pop(0))
        picked.update([("device", device), ("gpu", gpu_of[device])])
        free_on[gpu_of[device]] -= 1
    return tuple(answer)


class Algorithm(enum.StrEnum):
    """The search that finds the best devices."""

    ALIGNED = "aligned"
    GREEDY = "greedy"


def algorithm(devices: Sequence[Offered], available: Sequence[str]) -> Algorithm:
    """Return ALIGNED for whole GPUs, which can be connected, and GREEDY for MIG devices and shared GPUs."""
    if any(device.is_mig for device in devices) or any(map(device_resources.is_replica, available)):
        return Algorithm.GREEDY
    return Algorithm.ALIGNED


def prefer(
    devices: Mapping[str, Offered],
    *,
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    policy: str,
    scores: Mapping[tuple[str, str], int],
) -> tuple[str, ...]:
    """Choose `size` ids, including the `required` ones; () if the algorithm finds none. Raises AllocationError.

    devices: every id of the resource; other ids are ignored. policy: for shared devices. scores: by pair of GPU UUIDs
    (`aligned.pair_score`). Devices that are shared by MPS come from one GPU, because a container can use one daemon.
    """
    known = {name: devices[name] for name in sorted(devices, key=lambda name: _order(devices[name]))}
    wanted = [identity for identity in required if identity in known]
    if algorithm(list(known.values()), available) is Algorithm.GREEDY:
        usable = _usable_together(known, available=available, required=wanted, size=size)
        return prefer_greedily(
            {identity: device.device for identity, device in known.items()},
            available=_on_one_daemon(known, usable, required=wanted, policy=policy),
            required=wanted,
            size=size,
            policy=policy,
            gpus={device.device: device.gpu for device in known.values()},
        )
    ids = list(known)
    position = {identity: number for number, identity in enumerate(ids)}
    offered = set(available) | set(wanted)
    ranked = {(position[a], position[b]): score for (a, b), score in scores.items() if a in position and b in position}
    group = aligned.prefer(
        [position[identity] for identity in ids if identity in offered],
        required=[position[identity] for identity in wanted],
        size=size,
        scores=ranked,
    )
    return tuple(ids[number] for number in group)


def _usable_together(
    devices: Mapping[str, Offered], *, available: Sequence[str], required: Sequence[str], size: int
) -> list[str]:
    """Return the available devices that a container can have together with as many others as it requests."""
    if size > 1:  # if too few remain, keep devices that cannot be combined, so that the refusal is about them
        joint = [identity for identity in available if identity in devices and not devices[identity].stands_alone]
        available = joint if len({*joint, *required}) >= size else available
    groups = {identity: _group(device) for identity, device in devices.items()}
    free = collections.Counter(groups[identity] for identity in {*available, *required} if identity in groups)
    if not any(groups.values()) or sum(free.values()) < size:
        return list(available)
    wanted = {groups[identity] for identity in required}
    enough = {group for group, count in free.items() if count >= size and wanted <= {group}}
    if not enough:
        raise AllocationError(
            f"a container can use the MPS daemon of one GPU, and no GPU has {size} of its devices free: ask for fewer"
        )
    return [identity for identity in available if groups.get(identity) in enough]


def _on_one_daemon(
    devices: Mapping[str, Offered], available: Sequence[str], *, required: Sequence[str], policy: str
) -> list[str]:
    """Return the available devices with the same MPS daemon as the required ones, or as the best one."""
    gpus = {identity: device.gpu for identity, device in devices.items()}
    free = [identity for identity in available if identity in devices and identity not in required]
    first = required or prefer_greedily(gpus, available=free, required=(), size=min(1, len(free)), policy=policy)
    groups = {_group(devices[identity]) for identity in first}
    return [identity for identity in free if _group(devices[identity]) in groups]


def _group(device: Offered) -> str:
    """Return the GPU whose MPS daemon serves this device; empty without MPS. A container can use only one daemon."""
    return device.gpu if device.mode is Mode.MPS else ""


def _order(device: Offered) -> tuple[tuple[int, ...], int]:
    number = device.id.rpartition(device_resources.REPLICA)[2] if device_resources.is_replica(device.id) else "0"
    return WholeDevice(device.device, device.index, device.gpu).order, int(number)


def check_request(resource: str, requested: Sequence[str], devices: Mapping[str, Offered]) -> None:
    """Raise AllocationError if a container cannot have these ids together.

    devices: every id of the resource. If a shared device stands alone, a container may have only one: two shares are
    not a larger share, and may be on the same GPU.
    """
    for identity in requested:
        if identity not in devices:
            raise AllocationError(
                f'invalid allocation request for "{resource}": invalid request: unknown device: '
                f"{errors.shortened(identity)}"
            )
    if len(requested) > 1 and any(devices[identity].stands_alone for identity in requested):
        raise AllocationError(
            f'invalid allocation request for "{resource}": invalid request: maximum request size for shared resources '
            f"is 1; found {len(requested)}: ask for 1, or set failRequestsGreaterThanOne to false for {resource}"
        )
