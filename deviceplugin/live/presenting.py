"""What others see of the modes in force: the GPUs of the GPUNode, and the devices that the kubelet counts. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from deviceplugin.kubelet import advertisement, pod_resources
from deviceplugin.slack import Slack
from gpushare.gpu import Gpu, Mode
from gpushare.modes import offering
from gpushare.modes.assignment import Assignment
from gpushare.modes.card import Card

InForce = Mapping[str, Assignment | None]


def gpus(
    seen: Iterable[Gpu],
    in_force: InForce,
    wanted: Mapping[str, Assignment],
    closed: Collection[str],
    cards: Iterable[Card] = (),
) -> tuple[Gpu, ...]:
    """The GPUs with their modes. One that is being set up shows the mode it is to have, and takes nothing new.

    cards: those of them of which the MIG devices are known.
    """
    profiles = {card.uuid: tuple(one.profile for one in card.mig_devices) for card in cards}
    found = []
    for card in seen:
        now, later = in_force.get(card.uuid), wanted.get(card.uuid)
        shown = now or later
        pending = later.mode if later is not None and (card.uuid in closed or now is None) else None
        mode = shown.mode if shown is not None else Mode.EXCLUSIVE
        on_it = profiles.get(card.uuid, ())
        found.append(dataclasses.replace(card, mode=mode, pending_mode=pending, mig_profiles=on_it))
    return tuple(found)


def advertised(
    known: Sequence[Gpu],
    cards: Iterable[Card],
    in_force: InForce,
    *,
    closed: Collection[str],
    held: Iterable[pod_resources.Held],
    just_given: Collection[str] = (),
    ill: Collection[str] = (),
    slack: Slack = MappingProxyType({}),
) -> advertisement.Advertisement:
    """The devices of every resource.

    known: as of `gpus`; held, just_given: what containers have; ill: UUIDs of MIG devices that are not healthy; slack:
    what pods count for and do not have.
    """
    in_use: dict[str, set[str]] = collections.defaultdict(set)
    for one in held:
        in_use[one.resource].update(one.device_ids)
    ready = {uuid: assignment for uuid, assignment in in_force.items() if assignment is not None}
    offered = offering.offer(cards, ready)
    devices = dict(advertisement.of_devices(offered, known, ill=ill))
    # A node none of whose GPUs takes shares has no counters, and does not say that it has none.
    if not known or any(ready[card.uuid].mode is Mode.FRACTIONAL for card in known if card.uuid in ready):
        fractional = [card for card in known if card.uuid in ready and card.mode is Mode.FRACTIONAL]
        devices |= advertisement.of_shares(fractional, in_use=in_use, slack=slack)
    if not closed:
        return devices
    shut = {one.device for each in offered.values() for one in each if one.gpu in closed} | set(closed)
    return {
        name: advertisement.closed(each, cards=shut, in_use=in_use[name] | set(just_given))
        for name, each in devices.items()
    }
