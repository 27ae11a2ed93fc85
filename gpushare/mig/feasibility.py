"""Whether a GPU can have the instances that a config names, before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping

from gpushare.mig import catalogue, instance_layout, parted, profile
from gpushare.mig.geometry import Geometry
from gpushare.mig.instance_layout import Infeasible, Wanted


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
    infeasible = instance_layout.search(geometry, named(wanted or {}))
    return infeasible.reason if isinstance(infeasible, Infeasible) else None


def nowhere(entries: parted.Config) -> str | None:
    """Why no GPU of which it is known how it can be cut can be so, as a sentence; None if one can, or nobody knows.

    A profile that no such GPU has may be that of a newer model: that is for the node to say.
    """
    for number, entry in enumerate(entries):
        wanted = named(entry.wanted)
        layouts = [instance_layout.search(geometry, wanted) for geometry in _having(wanted)]
        refused = [layout for layout in layouts if isinstance(layout, Infeasible)]
        if refused and len(refused) == len(layouts):
            return f"mig[{number}] fits on no known GPU: {refused[0].reason}"
    return None


def _having(wanted: Wanted) -> tuple[Geometry, ...]:
    """The models that have all of these profiles."""
    known = catalogue.MODELS.values()
    return tuple(geometry for geometry in known if wanted and all(geometry.kind(kind) is not None for kind in wanted))
