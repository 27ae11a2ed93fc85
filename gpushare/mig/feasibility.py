"""Whether a GPU can have the instances that a config names, before anything is touched."""

from __future__ import annotations

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


def nowhere(entries: parted.Config) -> str | None:
    """Why no GPU of which it is known how it can be cut can be so, as a sentence; None if one can, or nobody knows.

    A profile that no such GPU has may be that of a newer model: that is for the node to say.
    """
    for number, entry in enumerate(entries):
        wanted = named(entry.wanted)
        misfits = [instance_layout.misfit(geometry, wanted) for geometry in _having(wanted)]
        if misfits and all(misfits):
            return f"mig[{number}] fits on no known GPU: {misfits[0]}"
    return None


def _having(wanted: Wanted) -> tuple[Geometry, ...]:
    """The models that have all of these profiles."""
    known = catalogue.MODELS.values()
    return tuple(geometry for geometry in known if wanted and all(geometry.kind(kind) is not None for kind in wanted))
