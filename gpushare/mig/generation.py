"""The configs that any node can have: all disabled, enabled and empty, the maximum of each profile, and a balanced mix.

They have the names that users of NVIDIA's mig-parted know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare.mig import profile
from gpushare.mig.parted import Config, MigConfigEntry
from gpushare.mig.profile import Profile

ALL_DISABLED: Final = "all-disabled"
ALL_ENABLED: Final = "all-enabled"
ALL_BALANCED: Final = "all-balanced"
# GPU slices of the model: how many instances of how many slices.
_BALANCED: Final[Mapping[int, Mapping[int, int]]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A GPU model of the node. device_id: its PCI IDs, as a filter. most: how many of each profile fit."""

    device_id: str
    most: Mapping[Profile, int]


def is_name(name: str) -> bool:
    """Whether a config of some node may have this name."""
    if name in {ALL_DISABLED, ALL_ENABLED, ALL_BALANCED}:
        return True
    try:
        profile.parse(name.removeprefix("all-").replace("gb.", "gb+", 1))
    except profile.ProfileError:
        return False
    return name.startswith("all-")


def configs(models: Sequence[Model]) -> dict[str, Config]:
    """Return all configs by name, for a node with these models."""
    by_name: dict[str, Config] = {
        ALL_DISABLED: (MigConfigEntry(devices=None, enabled=False),),
        ALL_ENABLED: (MigConfigEntry(devices=None, enabled=True),),
    }
    mix = balanced(models)
    if mix:
        by_name[ALL_BALANCED] = mix
    ids_of: dict[Profile, dict[int, list[str]]] = {}
    for model in models:
        for kind, most in model.most.items():
            # Profiles that are parts of GPU instances only make sense in a config written by hand.
            if not profile.is_part_of_instance(kind.compute_slices, kind.gpu_slices):
                ids = ids_of.setdefault(kind, {}).setdefault(most, [])
                if model.device_id not in ids:
                    ids.append(model.device_id)
    several = _several(models)
    for kind in sorted(ids_of, key=str):
        by_name[f"all-{profile.normalised(str(kind))}"] = tuple(
            MigConfigEntry(
                devices=None, enabled=True, wanted={str(kind): most}, filters=tuple(sorted(ids)) if several else ()
            )
            for most, ids in sorted(ids_of[kind].items())
        )
    return by_name


def balanced(models: Sequence[Model]) -> Config:
    """Return two small, one middle and, on GPUs of seven slices, one large instance; empty for models without these."""
    by_id = {model.device_id: model for model in sorted(models, key=lambda model: model.device_id)}
    several = _several(models)
    entries = []
    for model in by_id.values():
        wanted = _mix(model)
        if wanted:
            entries.append(
                MigConfigEntry(devices=None, enabled=True, wanted=wanted, filters=(model.device_id,) if several else ())
            )
    return tuple(entries)


def _mix(model: Model) -> dict[str, int]:
    by_slices: dict[int, Profile] = {}
    for kind, most in model.most.items():
        whole = kind.plain and kind.compute_slices == kind.gpu_slices
        known = by_slices.get(kind.gpu_slices)
        # Of two with the same slices, take the one with less memory, of which more fit.
        if whole and (known is None or most > model.most[known]):
            by_slices[kind.gpu_slices] = kind
    counts = _BALANCED.get(max(by_slices, default=0), {})
    if any(slices not in by_slices for slices in counts):
        return {}
    return {str(by_slices[slices]): count for slices, count in counts.items()}


def _several(models: Sequence[Model]) -> bool:
    return len({model.device_id for model in models}) > 1
