"""The published geometry of GPU models, to check a configuration without the GPU.

An agent asks its driver instead. A model's family fixes slices and placements; its memory fixes the profiles' names.
Placements and IDs are those that `nvidia-smi mig -lgip` and `-lgipp` show on A30, A100 and H100; for H200 and later,
the counts of NVIDIA's documentation with H100's placements.
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare.mig import profile
from gpushare.mig.geometry import Geometry, ProfileGeometry

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
    kinds = tuple(
        ProfileGeometry(_profile(rule, memory_bytes * shape[1] // slices, memory_bytes), *shape)
        for rule, shape in rules.items()
    )
    return Geometry(name, max(kind.gpu_slices for kind in kinds), slices, kinds)


def _profile(rule: str, instance_bytes: int, total_bytes: int) -> profile.Profile:
    memory = profile.memory_gb(instance_bytes=instance_bytes, total_bytes=total_bytes)
    return profile.parse(rule.removesuffix(" double").replace("g", f"g.{memory}gb", 1))


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
