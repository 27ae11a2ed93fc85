"""Which devices of a resource would be best: the answer to the kubelet's GetPreferredAllocation."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from deviceplugin.allocation import aligned, greedy
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
    Ids that are not the resource's are passed over. MIG devices count for the GPU that they are on.
    """
    known = {
        identity: devices[identity] for identity in sorted(devices, key=lambda device_id: _order(devices[device_id]))
    }
    wanted = [identity for identity in required if identity in known]
    if algorithm(list(known.values()), available) is Algorithm.GREEDY:
        gpus = {identity: device.gpu for identity, device in known.items()}
        return greedy.prefer(gpus, available=available, required=wanted, size=size, policy=policy)
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


def _order(device: Offered) -> tuple[tuple[int, ...], int]:
    number = device.id.rpartition(sharing.REPLICA)[2] if sharing.is_replica(device.id) else "0"
    return WholeDevice(device.device, device.index, device.gpu).order, int(number)
