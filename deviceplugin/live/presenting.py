"""What others see of the modes in force: the GPUs of the GPUNode, and the devices that the kubelet counts. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from deviceplugin.kubelet import advertisement
from deviceplugin.report.allocatable import Allocatable
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
    cards: Iterable[HardwareGpu] = (),
) -> tuple[Gpu, ...]:
    """The GPUs with their modes. One that is being set up shows the mode it is to have, and takes nothing new.

    cards: those of them of which the MIG devices are known.
    """
    profiles = {card.uuid: tuple(mig_device.profile for mig_device in card.mig_devices) for card in cards}
    gpus = []
    for card in seen:
        now, later = in_force.get(card.uuid), wanted.get(card.uuid)
        shown = now or later
        pending = later.mode if later is not None and (card.uuid in closed or now is None) else None
        mode = shown.mode if shown is not None else Mode.EXCLUSIVE
        on_it = profiles.get(card.uuid, ())
        gpus.append(dataclasses.replace(card, mode=mode, pending_mode=pending, mig_profiles=on_it))
    return tuple(gpus)


def advertised(
    known: Sequence[Gpu],
    cards: Iterable[HardwareGpu],
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
    offered = offering.offer(cards, ready)
    devices = dict(advertisement.of_devices(offered, known, ill=ill))
    # A node none of whose GPUs takes shares has no counters, and does not say that it has none.
    if not known or any(ready[card.uuid].mode is Mode.FRACTIONAL for card in known if card.uuid in ready):
        fractional = [card for card in known if card.uuid in ready and card.mode is Mode.FRACTIONAL]
        devices |= advertisement.of_shares(fractional, usable=usable, in_use=in_use)
    if not closed:
        return devices
    shut = {device.device for listed in offered.values() for device in listed if device.gpu in closed} | set(closed)
    return {
        name: advertisement.closed(listed, cards=shut, in_use=in_use.get(name, ())) for name, listed in devices.items()
    }
