"""What is published about each model: for checking a config without the GPU. On a node, NVML is asked instead.

Places and numbers as `nvidia-smi mig -lgip` and `-lgipp` show them on A30, A100 and H100; for H200 and later, the
counts of NVIDIA's documentation with H100's places.
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
"""

from __future__ import annotations

import re
from typing import Final

from gpushare.mig import profile
from gpushare.mig.geometry import Geometry, ProfileGeometry

# name: (device profile id, memory slices, starts, at most)
_Rule = tuple[int, int, tuple[int, ...], int]
_EIGHT: Final[dict[str, _Rule]] = {
    "1g": (19, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    "1g+me": (20, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g double": (15, 2, (0, 2, 4, 6), 4),
    "2g": (14, 2, (0, 2, 4), 3),
    "3g": (9, 4, (0, 4), 2),
    "4g": (5, 4, (0,), 1),
    "7g": (0, 8, (0,), 1),
}
_FOUR: Final[dict[str, _Rule]] = {
    "1g": (14, 1, (0, 1, 2, 3), 4),
    "1g+me": (21, 1, (0, 1, 2, 3), 1),
    "1g+gfx": (47, 1, (0, 1, 2, 3), 4),
    "1g+me.all": (65, 1, (0, 1, 2, 3), 1),
    "1g-me": (67, 1, (0, 1, 2, 3), 4),
    "2g": (5, 2, (0, 2), 2),
    "2g+me": (6, 2, (0, 2), 1),
    "2g+gfx": (35, 2, (0, 2), 2),
    "2g+me.all": (64, 2, (0, 2), 1),
    "2g-me": (66, 2, (0, 2), 2),
    "4g": (0, 4, (0,), 1),
    "4g+gfx": (32, 4, (0,), 1),
}

# rule: (profile, MiB, multiprocessors)
_Row = tuple[str, int | None, int | None]
_MODELS: Final[dict[str, tuple[dict[str, _Rule], dict[str, _Row]]]] = {
    "A30-24GB": (
        _FOUR,
        {
            "1g": ("1g.6gb", 5952, 14),
            "1g+me": ("1g.6gb+me", 5952, 14),
            "2g": ("2g.12gb", 11968, 28),
            "2g+me": ("2g.12gb+me", 11968, 28),
            "4g": ("4g.24gb", 24000, 56),
        },
    ),
    "A100-40GB": (
        _EIGHT,
        {
            "1g": ("1g.5gb", 4864, 14),
            "1g+me": ("1g.5gb+me", 4864, 14),
            "1g double": ("1g.10gb", 9856, 14),
            "2g": ("2g.10gb", 9856, 28),
            "3g": ("3g.20gb", 19968, 42),
            "4g": ("4g.20gb", 19968, 56),
            "7g": ("7g.40gb", 40192, 98),
        },
    ),
    "A100-80GB": (
        _EIGHT,
        {
            "1g": ("1g.10gb", 9728, 14),
            "1g+me": ("1g.10gb+me", 9728, 14),
            "1g double": ("1g.20gb", 19968, 14),
            "2g": ("2g.20gb", 19968, 28),
            "3g": ("3g.40gb", 40192, 42),
            "4g": ("4g.40gb", 40192, 56),
            "7g": ("7g.80gb", 81152, 98),
        },
    ),
    "H100-80GB": (
        _EIGHT,
        {
            "1g": ("1g.10gb", 9984, 16),
            "1g+me": ("1g.10gb+me", 9984, 16),
            "1g double": ("1g.20gb", 20096, 26),
            "2g": ("2g.20gb", 20096, 32),
            "3g": ("3g.40gb", 40448, 60),
            "4g": ("4g.40gb", 40448, 64),
            "7g": ("7g.80gb", 81152, 132),
        },
    ),
    "H100-94GB": (
        _EIGHT,
        {
            "1g": ("1g.12gb", None, None),
            "1g+me": ("1g.12gb+me", None, None),
            "1g double": ("1g.24gb", None, None),
            "2g": ("2g.24gb", None, None),
            "3g": ("3g.47gb", None, None),
            "4g": ("4g.47gb", None, None),
            "7g": ("7g.94gb", None, None),
        },
    ),
    "H100-96GB": (
        _EIGHT,
        {
            "1g": ("1g.12gb", None, None),
            "1g+me": ("1g.12gb+me", None, None),
            "1g double": ("1g.24gb", None, None),
            "2g": ("2g.24gb", None, None),
            "3g": ("3g.48gb", None, None),
            "4g": ("4g.48gb", None, None),
            "7g": ("7g.96gb", None, None),
        },
    ),
    "H200-141GB": (
        _EIGHT,
        {
            "1g": ("1g.18gb", 16384, None),
            "1g+me": ("1g.18gb+me", 16384, None),
            "1g double": ("1g.35gb", None, None),
            "2g": ("2g.35gb", 33280, None),
            "3g": ("3g.71gb", None, 60),
            "4g": ("4g.71gb", None, None),
            "7g": ("7g.141gb", 143360, 132),
        },
    ),
    "B200-180GB": (
        _EIGHT,
        {
            "1g": ("1g.23gb", None, None),
            "1g+me": ("1g.23gb+me", None, None),
            "1g double": ("1g.45gb", None, None),
            "2g": ("2g.45gb", None, None),
            "3g": ("3g.90gb", None, None),
            "4g": ("4g.90gb", None, None),
            "7g": ("7g.180gb", None, None),
        },
    ),
    "GB200-186GB": (
        _EIGHT,
        {
            "1g": ("1g.23gb", None, None),
            "1g+me": ("1g.23gb+me", None, None),
            "1g double": ("1g.47gb", None, None),
            "2g": ("2g.47gb", None, None),
            "3g": ("3g.93gb", None, None),
            "4g": ("4g.93gb", None, None),
            "7g": ("7g.186gb", None, None),
        },
    ),
    "RTX-PRO-6000": (
        _FOUR,
        {
            "1g": ("1g.24gb", None, None),
            "1g+me": ("1g.24gb+me", None, None),
            "1g+gfx": ("1g.24gb+gfx", None, None),
            "1g+me.all": ("1g.24gb+me.all", None, None),
            "1g-me": ("1g.24gb-me", None, None),
            "2g": ("2g.48gb", None, None),
            "2g+gfx": ("2g.48gb+gfx", None, None),
            "2g+me.all": ("2g.48gb+me.all", None, None),
            "2g-me": ("2g.48gb-me", None, None),
            "4g": ("4g.96gb", None, None),
            "4g+gfx": ("4g.96gb+gfx", None, None),
        },
    ),
}

# What NVML calls a model, the least memory of that row (GiB), and the row; the first that fits.
_NVML_NAMES: Final = (
    (r"\bGB200\b", 0, "GB200-186GB"),
    (r"\bB200\b", 0, "B200-180GB"),
    (r"\b(GH200 144|H200)", 0, "H200-141GB"),
    (r"\bGH200\b", 0, "H100-96GB"),
    (r"\bH100\b", 94.5, "H100-96GB"),
    (r"\bH100\b", 90, "H100-94GB"),
    (r"\bH100\b", 70, "H100-80GB"),
    (r"\bA100\b", 70, "A100-80GB"),
    (r"\bA100\b", 0, "A100-40GB"),
    (r"\bA30\b", 0, "A30-24GB"),
    (r"\bRTX PRO 6000\b", 0, "RTX-PRO-6000"),
)


def _geometry(name: str) -> Geometry:
    rules, rows = _MODELS[name]
    kinds = []
    for rule, (text, memory_mib, multiprocessors) in rows.items():
        number, memory_slices, starts, most = rules[rule]
        kinds.append(
            ProfileGeometry(profile.parse(text), number, memory_slices, starts, most, memory_mib, multiprocessors)
        )
    return Geometry(
        name,
        gpu_slices=max(kind.gpu_slices for kind in kinds),
        memory_slices=max(kind.memory_slices for kind in kinds),
        kinds=tuple(kinds),
    )


_OTHER_NAMES: Final = {"GH200": "H100-96GB", "GH200-96GB": "H100-96GB", "RTX-PRO-6000-96GB": "RTX-PRO-6000"}
MODELS: Final = {name: _geometry(name) for name in _MODELS}


def of_gpu(model: str, memory_bytes: int) -> Geometry | None:
    """The geometry of the GPU that NVML calls `model`; None for one that cannot be cut, or is unknown here."""
    for pattern, least_gib, name in _NVML_NAMES:
        if re.search(pattern, model) and memory_bytes >= least_gib * (1 << 30):
            return MODELS[name]
    return None


def named(name: str) -> Geometry | None:
    """The geometry of that name; a name without the size will do where there is one size, as `GB200`."""
    wanted = _OTHER_NAMES.get(name, name)
    geometries = [geometry for known, geometry in MODELS.items() if wanted == known or known.startswith(f"{wanted}-")]
    return geometries[0] if len(geometries) == 1 else None
