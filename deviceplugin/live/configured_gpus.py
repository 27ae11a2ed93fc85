"""The GPUs that a configuration was understood for, so that it means the same when one of them is gone. Pure.

A configuration names GPUs by number, or counts them. When one dies, the driver numbers those behind it again: the same
words would make other GPUs something else, or not be true of any. So as long as one is missing, and the configuration
is the same, each keeps its number, and the missing one is counted as if it were there. So is one that the driver counts
and that cannot be read: a configuration that names it is as good for the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from gpushare.modes.hardware_gpu import HardwareGpu

_UNREAD: Final = "unread-"  # in place of the UUID


@dataclasses.dataclass(frozen=True, slots=True)
class ConfiguredGpu:
    """A GPU by UUID, with its number and what else a configuration goes by."""

    uuid: str
    index: int
    model: str = ""
    mig_capable: bool = False


def of(cards: Iterable[HardwareGpu]) -> tuple[ConfiguredGpu, ...]:
    """The seats of GPUs that are there."""
    return tuple(ConfiguredGpu(card.uuid, card.index, card.model, card.mig_capable) for card in cards)


def missing(cards: Iterable[HardwareGpu], seats: Iterable[ConfiguredGpu]) -> tuple[ConfiguredGpu, ...]:
    """The seats whose GPU is gone, and that no other has taken."""
    cards, seats = tuple(cards), tuple(seats)
    here, known = {card.uuid for card in cards}, {seat.uuid for seat in seats}
    taken = {card.index for card in cards if card.uuid not in known}
    return tuple(seat for seat in seats if seat.uuid not in here and seat.index not in taken)


def seated(cards: Sequence[HardwareGpu], seats: Iterable[ConfiguredGpu]) -> tuple[HardwareGpu, ...]:
    """The GPUs at their seats, with those that are gone; as they are where none is."""
    gone = missing(cards, seats)
    if not gone:
        return tuple(cards)
    known = {seat.uuid: seat for seat in seats}
    here = [dataclasses.replace(card, index=known[card.uuid].index) for card in cards if card.uuid in known]
    new = [card for card in cards if card.uuid not in known]
    absent = [HardwareGpu(seat.uuid, seat.index, seat.model, seat.mig_capable) for seat in gone]
    return tuple(sorted((*here, *new, *absent), key=lambda card: (card.index, card.uuid)))


def unread(cards: Iterable[HardwareGpu], indices: Iterable[int | None]) -> tuple[HardwareGpu, ...]:
    """The GPUs with these numbers that are none of `cards`, of which nothing else is known."""
    known = {card.index for card in cards}
    new = (index for index in indices if index is not None and index not in known)
    return tuple(HardwareGpu(f"{_UNREAD}{index}", index, mig_capable=True) for index in new)


def is_unread(uuid: str) -> bool:
    """Whether this stands for the UUID of a GPU that cannot be read."""
    return uuid.startswith(_UNREAD)
