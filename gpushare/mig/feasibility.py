"""Checks whether a GPU can have the instances of a config, before anything is changed."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping

from gpushare.mig import catalogue, generation, instance_layout, parted, profile
from gpushare.mig.geometry import Geometry
from gpushare.mig.instance_layout import Wanted


def named(wanted: Mapping[str, int]) -> Wanted:
    """Return profiles with counts, from names with counts, without those of 0. Raises ProfileError."""
    counts: dict[profile.Profile, int] = {}
    for name, count in wanted.items():
        kind = profile.parse(name)
        if count > 0:
            counts[kind] = counts.get(kind, 0) + count
    return counts


def config_error(geometry: Geometry, wanted: Mapping[str, int] | None) -> str | None:
    """Return why a GPU cannot have these, as a sentence; None if it can."""
    try:
        parted.read_wanted(wanted)
    except parted.PartedError as error:
        return str(error)
    return instance_layout.misfit(geometry, named(wanted or {}))


@dataclasses.dataclass(frozen=True, slots=True)
class WithoutNode:
    """The verdict on MIG entries without a GPU.

    problem: why no GPU can have them; empty if one may. unknown: names that only a model newer than the catalogue may
    have.
    """

    problem: str = ""
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def without_node(entries: parted.Config | str) -> WithoutNode:
    """Check the entries, or the name of a generated config, against the models that have the named profiles.

    A newer model may use a name for a smaller part of itself (7 × 1g.35gb fit on GB300, 4 on H200). So entries that fit
    on no known model are a problem only if they would fit on no model with any memory.
    """
    if isinstance(entries, str):
        return WithoutNode(
            unknown=tuple(_unknown(f"mig is {entries}, which no known GPU supports", entries, _generated_names()))
        )
    warnings: list[str] = []
    unknown: list[str] = []
    for number, entry in enumerate(entries):
        wanted = named(entry.wanted)
        for kind in wanted:
            said = f"mig[{number}]: no known GPU has the MIG profile {kind}"
            unknown += _unknown(said, str(kind.gpu_instance), _profile_names())
        misfits = [instance_layout.misfit(geometry, wanted) for geometry in _having(wanted)]
        if not misfits or not all(misfits):
            continue
        reason = f"mig[{number}] fits on no known GPU: {misfits[0]}"
        if not any(instance_layout.fits(geometry, wanted) for geometry in catalogue.conceivable()):
            return WithoutNode(reason)
        warnings.append(f"{reason}; a newer model may have other profiles of these names")
    return WithoutNode("", tuple(warnings), tuple(unknown))


def _unknown(said: str, name: str, known: Iterable[str]) -> Iterator[str]:
    """Return a sentence with the nearest names, unless the name is known."""
    names = sorted(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.0)
        yield f"{said}: did you mean {' or '.join(near)}?"


@functools.cache
def _profile_names() -> frozenset[str]:
    return frozenset(str(kind.profile) for geometry in catalogue.MODELS.values() for kind in geometry.kinds)


@functools.cache
def _generated_names() -> frozenset[str]:
    models = (
        generation.Model(name, {kind.profile: kind.most for kind in geometry.kinds})
        for name, geometry in catalogue.MODELS.items()
    )
    return frozenset(name for model in models for name in generation.configs([model]))


def _having(wanted: Wanted) -> tuple[Geometry, ...]:
    """Return the models that have all of these profiles."""
    known = catalogue.MODELS.values()
    return tuple(geometry for geometry in known if wanted and all(geometry.kind(kind) is not None for kind in wanted))
