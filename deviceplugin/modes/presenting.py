"""What others see of the modes in force: the GPUs of the GPUNode, and the devices that the kubelet counts. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from deviceplugin.state import advertisement
from deviceplugin.state.allocatable import Allocatable
from gpushare.gpu import Gpu, Mode
from gpushare.modes import offering
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu

InForce = Mapping[str, Assignment | None]


def gpus(
    seen: Iterable[Gpu],
    in_force: InForce,
    wanted: Mapping[str, Assignment],
    closed: Collection[str],
    hardware: Iterable[HardwareGpu] = (),
) -> tuple[Gpu, ...]:
    """The GPUs with their modes. One that is being set up shows the mode it is to have, and takes nothing new.

    hardware: those of them of which the MIG devices are known.
    """
    profiles = {gpu.uuid: tuple(mig_device.profile for mig_device in gpu.mig_devices) for gpu in hardware}
    gpus = []
    for gpu in seen:
        now, later = in_force.get(gpu.uuid), wanted.get(gpu.uuid)
        shown = now or later
        pending = later.mode if later is not None and (gpu.uuid in closed or now is None) else None
        mode = shown.mode if shown is not None else Mode.EXCLUSIVE
        on_it = profiles.get(gpu.uuid, ())
        gpus.append(dataclasses.replace(gpu, mode=mode, pending_mode=pending, mig_profiles=on_it))
    return tuple(gpus)


def advertised(
    known: Sequence[Gpu],
    gpus: Iterable[HardwareGpu],
    in_force: InForce,
    *,
    closed: Collection[str],
    in_use: Mapping[str, Collection[str]],
    ill: Collection[str] = (),
    usable: Allocatable | None = None,
) -> advertisement.Advertisement:
    """The devices of every resource.

    known: as of `gpus`; in_use: by resource the ids that containers have; ill: UUIDs of MIG devices that are not
    healthy; usable: how many units of shares the node can give.
    """
    ready = {uuid: assignment for uuid, assignment in in_force.items() if assignment is not None}
    offered = offering.offer(gpus, ready)
    devices = dict(advertisement.of_devices(offered, known, ill=ill))
    # A node none of whose GPUs takes shares has no counters, and does not say that it has none.
    if not known or any(ready[gpu.uuid].mode is Mode.FRACTIONAL for gpu in known if gpu.uuid in ready):
        fractional = [gpu for gpu in known if gpu.uuid in ready and gpu.mode is Mode.FRACTIONAL]
        devices |= advertisement.of_shares(fractional, usable=usable, in_use=in_use)
    if not closed:
        return devices
    shut = {device.device for listed in offered.values() for device in listed if device.gpu in closed} | set(closed)
    return {
        name: advertisement.closed(listed, gpus=shut, in_use=in_use.get(name, ())) for name, listed in devices.items()
    }
