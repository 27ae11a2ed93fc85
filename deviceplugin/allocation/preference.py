"""Which devices of a resource would be best: the answer to the kubelet's GetPreferredAllocation."""

from __future__ import annotations

import collections
import enum
from collections.abc import Mapping, Sequence

from deviceplugin.allocation import aligned, greedy
from gpushare import errors
from gpushare.gpu import Mode
from gpushare.modes import sharing
from gpushare.modes.hardware_gpu import WholeDevice
from gpushare.modes.offering import Offered


class Algorithm(enum.StrEnum):
    """How the best are found."""

    ALIGNED = "aligned"
    GREEDY = "greedy"


def algorithm(devices: Sequence[Offered], available: Sequence[str]) -> Algorithm:
    """`aligned` where whole GPUs are given, which can be joined; `greedy` for MIG devices and shares of a GPU."""
    if any(device.is_mig for device in devices) or any(map(sharing.is_replica, available)):
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
    """`size` ids, the `required` ones among them; () where the algorithm has no answer. Raises AllocationError.

    devices: every id of the resource; policy: for shared ones; scores: of pairs of GPUs by UUID (`aligned.pair_score`).
    Ids that are not the resource's are passed over. Devices shared by MPS are of one GPU: a container has one daemon.
    """
    known = {
        identity: devices[identity] for identity in sorted(devices, key=lambda device_id: _order(devices[device_id]))
    }
    wanted = [identity for identity in required if identity in known]
    if algorithm(list(known.values()), available) is Algorithm.GREEDY:
        usable = _usable_together(known, available=available, required=wanted, size=size)
        return greedy.prefer(
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
    numbered = {
        (position[a], position[b]): score for (a, b), score in scores.items() if a in position and b in position
    }
    group = aligned.prefer(
        [position[identity] for identity in ids if identity in offered],
        required=[position[identity] for identity in wanted],
        size=size,
        scores=numbered,
    )
    return tuple(ids[number] for number in group)


def _usable_together(
    devices: Mapping[str, Offered], *, available: Sequence[str], required: Sequence[str], size: int
) -> list[str]:
    """Those available devices that a container can have with as many others as it asks for."""
    if size > 1:  # if there are too few, those that stand alone stay, so that the refusal is about them
        joint = [identity for identity in available if identity in devices and not devices[identity].stands_alone]
        available = joint if len({*joint, *required}) >= size else available
    groups = {identity: _group(device) for identity, device in devices.items()}
    free = collections.Counter(groups[identity] for identity in {*available, *required} if identity in groups)
    if not any(groups.values()) or sum(free.values()) < size:
        return list(available)
    wanted = {groups[identity] for identity in required}
    enough = {group for group, count in free.items() if count >= size and wanted <= {group}}
    if not enough:
        raise greedy.AllocationError(
            f"a container can use the MPS daemon of one GPU, and no GPU has {size} of its devices free: ask for fewer"
        )
    return [identity for identity in available if groups.get(identity) in enough]


def _on_one_daemon(
    devices: Mapping[str, Offered], available: Sequence[str], *, required: Sequence[str], policy: str
) -> list[str]:
    """Those available devices that go together with the best one."""
    gpus = {identity: device.gpu for identity, device in devices.items()}
    free = [identity for identity in available if identity in devices and identity not in required]
    first = required or greedy.prefer(gpus, available=free, required=(), size=min(1, len(free)), policy=policy)
    groups = {_group(devices[identity]) for identity in first}
    return [identity for identity in free if _group(devices[identity]) in groups]


def _group(device: Offered) -> str:
    """What a container's devices have in common: the GPU whose MPS daemon they use, or that they use none."""
    return device.gpu if device.mode is Mode.MPS else ""


def _order(device: Offered) -> tuple[tuple[int, ...], int]:
    number = device.id.rpartition(sharing.REPLICA)[2] if sharing.is_replica(device.id) else "0"
    return WholeDevice(device.device, device.index, device.gpu).order, int(number)


def check_request(resource: str, requested: Sequence[str], devices: Mapping[str, Offered]) -> None:
    """Raises AllocationError if a container cannot have the ids that it asks for together.

    devices: every id of the resource. Of shared devices that say so a container may have one: two shares are no larger
    share, and may be of the same GPU.
    """
    for identity in requested:
        if identity not in devices:
            raise greedy.AllocationError(
                f'invalid allocation request for "{resource}": invalid request: unknown device: '
                f"{errors.shortened(identity)}"
            )
    if len(requested) > 1 and any(devices[identity].stands_alone for identity in requested):
        raise greedy.AllocationError(
            f'invalid allocation request for "{resource}": invalid request: maximum request size for shared resources '
            f"is 1; found {len(requested)}: ask for 1, or set failRequestsGreaterThanOne to false for {resource}"
        )
