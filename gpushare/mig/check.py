"""Whether a GPU can have the instances that a config names, before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping

from gpushare.mig import layout, parted, profile
from gpushare.mig.geometry import Geometry
from gpushare.mig.layout import Infeasible, Wanted


def named(wanted: Mapping[str, int]) -> Wanted:
    """Profiles with counts, from names with counts; those of 0 are left out. Raises ProfileError."""
    found: dict[profile.Profile, int] = {}
    for name, count in wanted.items():
        kind = profile.parse(name)
        if count > 0:
            found[kind] = found.get(kind, 0) + count
    return found


def config_error(geometry: Geometry, wanted: Mapping[str, int] | None) -> str | None:
    """Why a GPU cannot have these, as a sentence; None if it can."""
    try:
        parted.read_wanted(wanted)
    except parted.PartedError as error:
        return str(error)
    found = layout.search(geometry, named(wanted or {}))
    return found.reason if isinstance(found, Infeasible) else None
