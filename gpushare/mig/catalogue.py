"""The published geometry of GPU models, to check a configuration without the GPU.

A model's family fixes slices and placements; its memory fixes the profiles' names. An agent asks its driver instead.
Placements and IDs are those that `nvidia-smi mig -lgip` and `-lgipp` show on A30, A100 and H100; for H200 and later,
the counts of NVIDIA's documentation with H100's placements.
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpushare.mig import instance_layout, parted, profile
from gpushare.mig.instance_layout import Geometry, ProfileGeometry

# profile name without its memory: (device profile id, memory slices, starts, maximum)
_Rules = Mapping[str, tuple[int, int, tuple[int, ...], int]]
_EIGHT: Final[_Rules] = {
    "1g": (19, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    "1g+me": (20, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g double": (15, 2, (0, 2, 4, 6), 4),
    "2g": (14, 2, (0, 2, 4), 3),
    "3g": (9, 4, (0, 4), 2),
    "4g": (5, 4, (0,), 1),
    "7g": (0, 8, (0,), 1),
}
_A30: Final[_Rules] = {
    "1g": (14, 1, (0, 1, 2, 3), 4),
    "1g+me": (21, 1, (0, 1, 2, 3), 1),
    "2g": (5, 2, (0, 2), 2),
    "2g+me": (6, 2, (0, 2), 1),
    "4g": (0, 4, (0,), 1),
}
_RTX: Final[_Rules] = {
    "1g": (14, 1, (0, 1, 2, 3), 4),
    "1g+me": (21, 1, (0, 1, 2, 3), 1),
    "1g+gfx": (47, 1, (0, 1, 2, 3), 4),
    "1g+me.all": (65, 1, (0, 1, 2, 3), 1),
    "1g-me": (67, 1, (0, 1, 2, 3), 4),
    "2g": (5, 2, (0, 2), 2),
    "2g+gfx": (35, 2, (0, 2), 2),
    "2g+me.all": (64, 2, (0, 2), 1),
    "2g-me": (66, 2, (0, 2), 2),
    "4g": (0, 4, (0,), 1),
    "4g+gfx": (32, 4, (0,), 1),
}
# By NVML's name of the model.
_FAMILIES: Final = (
    (re.compile(r"\bA30\b"), _A30),
    (re.compile(r"\bRTX PRO 6000\b"), _RTX),
    (re.compile(r"\b(?:A[18]00|PG506|H20|G?[HB][1-9]00)\b"), _EIGHT),
)
_GIB: Final = 1 << 30
_MAX_GIB: Final = 1024


def _geometry(name: str, rules: _Rules, memory_bytes: int) -> Geometry:
    slices = max(size for _, size, _, _ in rules.values())
    kinds = []
    for rule, shape in rules.items():
        memory = profile.memory_gb(instance_bytes=memory_bytes * shape[1] // slices, total_bytes=memory_bytes)
        kind = profile.parse(rule.removesuffix(" double").replace("g", f"g.{memory}gb", 1))
        kinds.append(ProfileGeometry(kind, *shape))
    return Geometry(name, max(kind.gpu_slices for kind in kinds), slices, tuple(kinds))


MODELS: Final = {
    name: _geometry(name, rules, gib * _GIB)
    for name, rules, gib in (
        ("A30-24GB", _A30, 24),
        ("A100-40GB", _EIGHT, 40),
        ("A100-80GB", _EIGHT, 80),
        ("H100-80GB", _EIGHT, 80),
        ("H100-94GB", _EIGHT, 94),
        ("H100-96GB", _EIGHT, 96),
        ("H200-141GB", _EIGHT, 141),
        ("GH200-144GB", _EIGHT, 144),
        ("B200-180GB", _EIGHT, 180),
        ("GB200-186GB", _EIGHT, 186),
        ("GB200-189GB", _EIGHT, 189),
        ("B300-269GB", _EIGHT, 269),
        ("GB300-278GB", _EIGHT, 278),
        ("RTX-PRO-6000", _RTX, 96),
    )
}


def of_gpu(model: str, memory_bytes: int) -> Geometry | None:
    """Return the geometry of the GPU that NVML calls `model`; None without MIG, or for an unknown model."""
    rules = next((rules for pattern, rules in _FAMILIES if pattern.search(model)), None)
    return _geometry(model, rules, memory_bytes) if rules is not None and memory_bytes > 0 else None


def conceivable() -> Iterator[Geometry]:
    """Yield models of these families with any memory: a newer model may use the profile names of an older one."""
    for gib in range(1, _MAX_GIB + 1):
        for _, rules in _FAMILIES:
            yield _geometry(f"a GPU of {gib} GiB", rules, gib * _GIB)


@dataclasses.dataclass(frozen=True, slots=True)
class WithoutNode:
    """The verdict on MIG entries without a GPU."""

    problem: str = ""  # why no GPU can have them; empty if one may
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # sentences about names that only a model newer than the catalogue may have


def without_node(entries: parted.Config | str) -> WithoutNode:
    """Check the entries, or the name of a generated config, against the models that have the named profiles.

    A newer model may use a name for a smaller part of itself (7 × 1g.35gb fit on GB300, 4 on H200), so entries are a
    problem only if they would fit on no model with any memory.
    """
    if isinstance(entries, str):
        return WithoutNode(
            unknown=tuple(_unknown(f"mig is {entries}, which no known GPU supports", entries, _generated_names()))
        )
    warnings: list[str] = []
    unknown: list[str] = []
    for number, entry in enumerate(entries):
        wanted = instance_layout.named(entry.wanted)
        for kind in wanted:
            said = f"mig[{number}]: no known GPU has the MIG profile {kind}"
            unknown += _unknown(
                said,
                str(kind.gpu_instance),
                {str(known.profile) for geometry in MODELS.values() for known in geometry.kinds},
            )
        having = (model for model in MODELS.values() if wanted and all(map(model.kind, wanted)))
        misfits = [instance_layout.misfit(geometry, wanted) for geometry in having]
        if not misfits or not all(misfits):
            continue
        reason = f"mig[{number}] fits on no known GPU: {misfits[0]}"
        if not any(instance_layout.fits(geometry, wanted) for geometry in conceivable()):
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
def _generated_names() -> frozenset[str]:
    most = [{kind.profile: kind.most for kind in geometry.kinds} for geometry in MODELS.values()]
    return frozenset(name for kinds in most for name in parted.generated_configs([parted.MigModel("", kinds)]))
