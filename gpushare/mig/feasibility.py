"""Whether a GPU can have the instances that a config names, before anything is touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpushare.mig import catalogue, instance_layout, parted, profile
from gpushare.mig.geometry import Geometry
from gpushare.mig.instance_layout import Wanted


def named(wanted: Mapping[str, int]) -> Wanted:
    """Profiles with counts, from names with counts; those of 0 are left out. Raises ProfileError."""
    counts: dict[profile.Profile, int] = {}
    for name, count in wanted.items():
        kind = profile.parse(name)
        if count > 0:
            counts[kind] = counts.get(kind, 0) + count
    return counts


def config_error(geometry: Geometry, wanted: Mapping[str, int] | None) -> str | None:
    """Why a GPU cannot have these, as a sentence; None if it can."""
    try:
        parted.read_wanted(wanted)
    except parted.PartedError as error:
        return str(error)
    return instance_layout.misfit(geometry, named(wanted or {}))


@dataclasses.dataclass(frozen=True, slots=True)
class WithoutNode:
    """What can be said of MIG entries without a GPU. problem: why no GPU can have them; empty if one may."""

    problem: str = ""
    warnings: tuple[str, ...] = ()


def without_node(entries: parted.Config) -> WithoutNode:
    """Judge the entries by the models that have the profiles that they name.

    A newer model may use a name for a smaller part of itself (7 × 1g.35gb fit on GB300, 4 on H200), so entries that fit
    on no known model are an error only if they would fit on none of any memory. A name that no known model has is for
    the node to judge.
    """
    warnings = []
    for number, entry in enumerate(entries):
        wanted = named(entry.wanted)
        misfits = [instance_layout.misfit(geometry, wanted) for geometry in _having(wanted)]
        if not misfits or not all(misfits):
            continue
        reason = f"mig[{number}] fits on no known GPU: {misfits[0]}"
        if not any(instance_layout.fits(geometry, wanted) for geometry in catalogue.conceivable()):
            return WithoutNode(reason)
        warnings.append(f"{reason}; a newer model may have other profiles of these names")
    return WithoutNode("", tuple(warnings))


def _having(wanted: Wanted) -> tuple[Geometry, ...]:
    """The models that have all of these profiles."""
    known = catalogue.MODELS.values()
    return tuple(geometry for geometry in known if wanted and all(geometry.kind(kind) is not None for kind in wanted))
