"""Plans how GPUs get from their present modes to the wanted ones, and what other components see of it. Pure.

A GPU changes its mode in three moves, and a crash between any two of them is harmless. It is **closed**: it accepts no
new pods. A pod may still be on its way, so only then the agent looks for users. Once it has none, it is **vacated**: it
has no assignment, and none of it is offered. Then its new assignment is set up, and put in force. Only a closed GPU
without users is ever vacated. A GPU that has **drifted**, because another program changed it, is closed too, and
**repaired**: it is set up again for the mode that it already has, which does not disturb its users.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Final, Generic, TypeVar

from deviceplugin.state import advertisement
from deviceplugin.state.advertisement import Allocatable
from deviceplugin.state.node_state import ConfigStatus
from gpushare import contract, mig_shares
from gpushare.allocation import Isolation
from gpushare.config import config_choice
from gpushare.config.config_choice import ActiveConfig
from gpushare.contract import CONDITION_CONFIG_PENDING as PENDING
from gpushare.contract import CONDITION_CONFIG_VALID as VALID
from gpushare.gpunode import Condition, Gpu, Mode
from gpushare.modes.assignment import Assignment, offer
from gpushare.modes.hardware_gpu import HardwareGpu

AnyAssignment = TypeVar("AnyAssignment")


@dataclasses.dataclass(frozen=True, slots=True)
class TransitionPlan(Generic[AnyAssignment]):
    """The next moves, by UUID.

    closed: the GPUs that accept no new pods from now on; all others do. change: the GPUs to vacate and set up now, with
    their new assignment. waiting: the GPUs that cannot be changed yet, with their users.
    """

    closed: frozenset[str]
    repair: frozenset[str]
    change: Mapping[str, AnyAssignment]
    waiting: Mapping[str, tuple[str, ...]]


def plan(
    present: Mapping[str, AnyAssignment | None],
    wanted: Mapping[str, AnyAssignment],
    *,
    closed: Set[str],
    users: Mapping[str, tuple[str, ...]],
    drifted: Set[str] = frozenset(),
) -> TransitionPlan[AnyAssignment]:
    """Plan the next moves.

    present: the assignments in force; None for a GPU that was vacated or is unknown. wanted: the configured ones; a GPU
    without one stays as it is. closed: the GPUs that were closed before `users`, in words, was determined. drifted: the
    GPUs whose state differs from the assignment in force.
    """
    differing = {uuid for uuid, assignment in wanted.items() if present.get(uuid) != assignment}
    known = differing & closed
    return TransitionPlan(
        closed=frozenset(differing | drifted),
        repair=frozenset((drifted - differing) & closed),
        change={uuid: wanted[uuid] for uuid in wanted if uuid in known and not users.get(uuid)},
        waiting={uuid: users[uuid] for uuid in wanted if uuid in known and users.get(uuid)},
    )


InForce = Mapping[str, Assignment | None]
_BUILT_IN: Final = "no entry of the ConfigMap applies, so every GPU takes shares by annotation"
_BUILT_IN_STAYS: Final = "every GPU continues to take shares by annotation, as without a ConfigMap"
_BORROWED: Final = f"another device plugin gives the GPUs, and placeholders borrow them ({contract.BORROW_LABEL})"
_MAX_NAMED: Final = 20  # users of a GPU, in a condition


def gpus_with_modes(
    seen: Iterable[Gpu],
    in_force: InForce,
    wanted: Mapping[str, Assignment],
    closed: Collection[str],
    hardware: Iterable[HardwareGpu] = (),
) -> tuple[Gpu, ...]:
    """Return the GPUs with their modes. A GPU being set up reports its target mode and accepts no new pods."""
    known = {gpu.uuid: gpu for gpu in hardware}
    gpus = []
    for gpu in seen:
        now, later = in_force.get(gpu.uuid), wanted.get(gpu.uuid)
        shown = now or later
        pending = later.mode if later is not None and (gpu.uuid in closed or now is None) else None
        there = known.get(gpu.uuid) or HardwareGpu(gpu.uuid, gpu.index)
        allowed = (later or shown or Assignment(Mode.EXCLUSIVE)).isolations or gpu.isolations
        isolations = tuple(kind for kind in allowed if kind in there.isolations)
        # Shares keep their devices when the configuration no longer allows new ones.
        is_cut = Isolation.MIG in isolations or bool(there.cut_for_shares)
        gpus.append(
            dataclasses.replace(
                gpu,
                mode=shown.mode if shown is not None else Mode.EXCLUSIVE,
                pending_mode=pending,
                mig_profiles=tuple(mig_device.profile for mig_device in (*there.mig_devices, *there.cut_for_shares)),
                isolations=isolations,
                mig_geometry=mig_shares.profiles(there.geometry, gpu.memory_bytes) if is_cut else (),
                sm_partitions=there.sm_partitions,
            )
        )
    return tuple(gpus)


def with_isolations(gpu: HardwareGpu, *, by_mps: bool, by_mig: bool, only_mig: bool, partitions: int) -> HardwareGpu:
    """Return the GPU with the isolations that its shares may have now.

    only_mig: it cannot leave MIG mode now. partitions: the SM partitions of MPS clients, which shares keep while the
    GPU offers no mps, as without the keeper.
    """
    if only_mig:
        return dataclasses.replace(gpu, isolations=(Isolation.MIG,))
    isolations = (*gpu.isolations, *[Isolation.MPS] * by_mps, *[Isolation.MIG] * by_mig)
    return dataclasses.replace(gpu, isolations=isolations, sm_partitions=partitions)


def without_partitions(hardware: Iterable[HardwareGpu], wanted: Mapping[str, Assignment]) -> list[str]:
    """Return a warning for each GPU that cannot have the SM partitions that its configuration asks for."""
    return [
        f"GPU {gpu.index} ({gpu.uuid}) offers no isolation mps: smPartitions needs Ampere or later, a driver with "
        "CUDA 13.1, and a chunk of multiprocessors for each partition"
        for gpu in hardware
        if gpu.uuid in wanted and wanted[gpu.uuid].sm_partitions and not gpu.can_partition
    ]


def advertised(
    known: Sequence[Gpu],
    gpus: Iterable[HardwareGpu],
    in_force: InForce,
    *,
    closed: Collection[str],
    in_use: Mapping[str, Collection[str]],
    unhealthy: Collection[str] = (),
    usable: Allocatable | None = None,
) -> advertisement.Advertisement:
    """Return the devices of every resource.

    known: the result of `gpus_with_modes`; in_use: by resource, the device IDs that containers have; unhealthy: UUIDs
    of unhealthy MIG devices; usable: how many units of shares the node can give.
    """
    ready = {uuid: assignment for uuid, assignment in in_force.items() if assignment is not None}
    offered = offer(gpus, ready)
    devices = dict(advertisement.of_devices(offered, known, unhealthy=unhealthy))
    # A node without fractional GPUs advertises no counters at all, instead of zero.
    if not known or any(ready[gpu.uuid].mode is Mode.FRACTIONAL for gpu in known if gpu.uuid in ready):
        fractional = [gpu for gpu in known if gpu.uuid in ready and gpu.mode is Mode.FRACTIONAL]
        devices |= advertisement.of_shares(fractional, usable=usable, in_use=in_use)
    if not closed:
        return devices
    shut = {device.device for listed in offered.values() for device in listed if device.gpu in closed} | set(closed)
    return {name: advertisement.closed(own, gpus=shut, in_use=in_use.get(name, ())) for name, own in devices.items()}


def config_status(
    *,
    config: ActiveConfig | None,
    problem: str,
    warnings: Sequence[str],
    gpus: Iterable[Gpu],
    wanted: Mapping[str, Assignment],
    waiting: Mapping[str, tuple[str, ...]],
    failed: Mapping[str, str],
    changing: Iterable[str],
) -> ConfigStatus:
    """Return the name of the configuration in force, and its conditions.

    config: the last valid one, or None; problem: why the requested one is not in force, or empty; warnings: parts of
    it without effect; waiting: by UUID, the users of a GPU that has to change; failed: by UUID, why setup failed;
    changing: UUIDs of the GPUs that differ from `wanted`.
    """
    if config is None:
        message = f"{problem}; nothing is in force, and this node offers no GPU until that is fixed"
        valid = Condition(VALID, "False", contract.REASON_NOTHING_IN_FORCE, message)
        return ConfigStatus("", (valid, Condition(PENDING, "False", "Done", "no GPU is configured")))
    name, shown = config.name, config.name or "the empty configuration"
    if config == config_choice.BORROWED and not problem:
        warnings = (_BORROWED, *warnings)
    is_entry = config != config_choice.BUILT_IN  # its name is "default", but it is no entry of that name
    if problem:
        message = f"{problem}; {shown} stays in force" if is_entry else f"{problem}; {_BUILT_IN_STAYS}"
        valid = Condition(VALID, "False", "Refused", message)
    else:
        in_force = f"{shown} is in force" if is_entry else _BUILT_IN
        valid = Condition(VALID, "True", "InForce", "; ".join((in_force, *warnings)))
    pending = sorted(changing)
    if not pending:
        return ConfigStatus(name, (valid, Condition(PENDING, "False", "Done", "every GPU is as configured")))
    sentences = [
        _sentence(gpu, wanted[gpu.uuid], waiting.get(gpu.uuid, ()), failed.get(gpu.uuid, ""))
        for gpu in gpus
        if gpu.uuid in pending and gpu.uuid in wanted
    ]
    reason = "SetUpFailed" if failed else "GpusInUse" if waiting else "Changing"
    return ConfigStatus(name, (valid, Condition(PENDING, "True", reason, "; ".join(sentences))))


def _sentence(gpu: Gpu, wanted: Assignment, users: tuple[str, ...], failure: str) -> str:
    # `kubectl gpushare` finds the reason by these words, also in the conditions of other releases.
    change = f"GPU {gpu.index} ({gpu.uuid}) is to become {wanted}"
    if failure:
        return f"{change}, which failed: {failure}"
    if not users:
        return f"{change}: it is being changed"
    more = f" and {len(users) - _MAX_NAMED} more" if len(users) > _MAX_NAMED else ""
    return f"{change} once it is not used any more by {', '.join(users[:_MAX_NAMED])}{more}"
